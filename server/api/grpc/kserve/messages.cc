// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/kserve/messages.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "engine/text/utf8_repair.h"
#include "inference/grpc_service.pb.h"
#include "kernels/base/refusal.h"
#include "server/api/grpc/kserve/parameters.h"
#include "server/serving/request/served_names.h"

namespace diffserve {
namespace {

using InputTensor = inference::ModelInferRequest::InferInputTensor;

constexpr char kVersion[] = "1";
constexpr int kCompletionsMaxTokens = 16;  // as of /v1/completions

Status Wrong(const InputTensor& input, const std::string& found, std::string_view allowed) {
  return NotAllowed("the input " + input.name() + " " + found, allowed, input.name());
}

// The number of elements in a batch of one: a vector, or the only row of a matrix. 0: neither.
int64_t NumElements(const InputTensor& input) {
  const auto& shape = input.shape();
  if (shape.size() == 1) return std::max<int64_t>(0, shape[0]);
  return shape.size() == 2 && shape[0] == 1 ? std::max<int64_t>(0, shape[1]) : 0;
}

// `raw` is the tensor's bytes, or nullptr if they are in its contents.
Status ReadText(const InputTensor& input, const std::string* raw, GenerateRequest& to) {
  if (input.datatype() != "BYTES")
    return Wrong(input, "has the datatype " + Cited(input.datatype()), "BYTES");
  if (NumElements(input) != 1) return Wrong(input, "has another shape", "one text, [1] or [1,1]");
  if (raw == nullptr) {
    if (input.contents().bytes_contents_size() != 1)
      return Wrong(input,
                   "has " + std::to_string(input.contents().bytes_contents_size()) +
                       " entries in bytes_contents",
                   "1");
    to.prompts.emplace_back(input.contents().bytes_contents(0));
    return {};
  }
  uint32_t size = 0;  // little-endian, before the text
  if (raw->size() >= sizeof(size)) std::memcpy(&size, raw->data(), sizeof(size));
  if (raw->size() < sizeof(size) || raw->size() - sizeof(size) != size)
    return Wrong(input, "has " + std::to_string(raw->size()) + " raw bytes",
                 "one text after its length in 4 bytes");
  to.prompts.emplace_back(raw->substr(sizeof(size)));
  return {};
}

template <typename Id>
Status AppendIds(const InputTensor& input, std::span<const Id> from, std::vector<int32_t>& to) {
  for (const Id id : from) {
    if (id < 0 || !std::in_range<int32_t>(id))
      return Wrong(input, "has the token id " + std::to_string(id),
                   RangeText(0, std::numeric_limits<int32_t>::max()));
    to.push_back(static_cast<int32_t>(id));
  }
  return {};
}

template <typename Id>
Status ReadIdsOf(const InputTensor& input, const std::string* raw, std::span<const Id> contents,
                 GenerateRequest& to) {
  const int64_t count = NumElements(input);
  if (count == 0) return Wrong(input, "has another shape", "a list of ids, [n] or [1,n]");
  std::vector<Id> copied;  // raw bytes are not aligned
  if (raw != nullptr && raw->size() % sizeof(Id) == 0) {
    copied.resize(raw->size() / sizeof(Id));
    std::memcpy(copied.data(), raw->data(), raw->size());
    contents = copied;
  } else if (raw != nullptr) {
    return Wrong(input, "has " + std::to_string(raw->size()) + " raw bytes",
                 "whole elements of " + std::to_string(sizeof(Id)) + " bytes");
  }
  if (static_cast<int64_t>(contents.size()) != count) {
    return Wrong(input, "has " + std::to_string(contents.size()) + " elements",
                 std::to_string(count) + ", as its shape says");
  }
  std::vector<int32_t> ids;
  ids.reserve(contents.size());
  DS_RETURN_IF_ERROR(AppendIds(input, contents, ids));
  to.prompts.emplace_back(std::move(ids));
  return {};
}

Status ReadIds(const InputTensor& input, const std::string* raw, GenerateRequest& to) {
  const auto& in32 = input.contents().int_contents();
  const auto& in64 = input.contents().int64_contents();
  if (input.datatype() == "INT32")
    return ReadIdsOf(input, raw, std::span(in32.data(), static_cast<size_t>(in32.size())), to);
  if (input.datatype() == "INT64")
    return ReadIdsOf(input, raw, std::span(in64.data(), static_cast<size_t>(in64.size())), to);
  return Wrong(input, "has the datatype " + Cited(input.datatype()), "INT32, INT64");
}

Status ReadInputs(const inference::ModelInferRequest& message, GenerateRequest& to) {
  const int count = message.inputs_size();
  if (message.raw_input_contents_size() != 0 && message.raw_input_contents_size() != count) {
    return NotAllowed(
        "raw_input_contents has " + std::to_string(message.raw_input_contents_size()) + " entries",
        "none, or one for each input", "raw_input_contents");
  }
  for (int i = 0; i < count; ++i) {
    const InputTensor& input = message.inputs(i);
    const std::string* raw = message.raw_input_contents_size() == 0
                                 ? nullptr
                                 : &message.raw_input_contents(i);
    const bool is_text = input.name() == "text_input";
    if (!is_text && input.name() != "input_ids") {
      return NotAllowed("the input " + Cited(input.name()) + " is not known",
                        "text_input, input_ids", input.name().substr(0, kMaxCitedBytes));
    }
    if (!input.parameters().empty()) return Wrong(input, "has parameters", "none");
    if (raw != nullptr && input.has_contents())
      return Wrong(input, "has contents and raw_input_contents", "one of them");
    if (!to.prompts.empty())
      return Wrong(input, "is a second prompt", "text_input or input_ids, once");
    to.names.prompt = is_text ? "text_input" : "input_ids";
    DS_RETURN_IF_ERROR(is_text ? ReadText(input, raw, to) : ReadIds(input, raw, to));
  }
  if (to.prompts.empty())
    return NotAllowed("the prompt is missing", "text_input, input_ids", "text_input");
  return {};
}

Status ReadOutputs(const inference::ModelInferRequest& message, InferShape& to) {
  if (message.outputs().empty()) return {};
  to.text = to.ids = to.finish_reason = false;
  for (const auto& output : message.outputs()) {
    bool* const wanted = output.name() == "text_output"     ? &to.text
                         : output.name() == "output_ids"    ? &to.ids
                         : output.name() == "finish_reason" ? &to.finish_reason
                                                            : nullptr;
    const std::string cited = output.name().substr(0, kMaxCitedBytes);
    if (wanted == nullptr) {
      return NotAllowed("the output " + Cited(cited) + " is not known",
                        "text_output, output_ids, finish_reason", cited);
    }
    if (!output.parameters().empty())
      return NotAllowed("the output " + cited + " has parameters", "none", cited);
    *wanted = true;
  }
  return {};
}

void AddTensor(
    const char* name, const char* datatype, int64_t length,
    google::protobuf::RepeatedPtrField<inference::ModelMetadataResponse::TensorMetadata>& to) {
  inference::ModelMetadataResponse::TensorMetadata& tensor = *to.Add();
  tensor.set_name(name);
  tensor.set_datatype(datatype);
  tensor.add_shape(length);
}

void AddOutput(const char* name, const char* datatype, size_t length, std::string raw,
               inference::ModelInferResponse& to) {
  inference::ModelInferResponse::InferOutputTensor& tensor = *to.add_outputs();
  tensor.set_name(name);
  tensor.set_datatype(datatype);
  tensor.add_shape(static_cast<int64_t>(length));
  to.add_raw_output_contents(std::move(raw));
}

// An element of a BYTES tensor.
std::string Element(std::string_view text) {
  const uint32_t size = static_cast<uint32_t>(text.size());
  std::string raw(sizeof(size), '\0');
  std::memcpy(raw.data(), &size, sizeof(size));
  return raw.append(text);
}

void SetFinal(bool is_final, inference::ModelInferResponse& out) {
  (*out.mutable_parameters())["triton_final_response"].set_bool_param(is_final);
}

}  // namespace

Status CheckModelName(std::string_view name, std::string_view version,
                      const FrontendOptions& limits) {
  if (!limits.names.Has(name)) return UnknownModel(name, limits.names.All(), "model_name");
  if (version.empty() || version == kVersion) return {};
  return Status(StatusCode::kNotFound,
                "the model has no version " + Cited(version) + ", only " + kVersion,
                "model_version");
}

Result<InferRequest> FromProto(const inference::ModelInferRequest& message,
                               const FrontendOptions& limits, const SamplingSpec& defaults,
                               bool streams) {
  DS_RETURN_IF_ERROR(CheckModelName(message.model_name(), message.model_version(), limits));
  InferRequest request;
  request.shape.id = message.id();
  request.shape.model = message.model_name();
  request.generate.model = message.model_name();
  request.generate.sampling = defaults;
  request.generate.max_tokens_default = kCompletionsMaxTokens;
  DS_RETURN_IF_ERROR(ReadInferParameters(message, streams, request));
  DS_RETURN_IF_ERROR(ReadOutputs(message, request.shape));
  DS_RETURN_IF_ERROR(ReadInputs(message, request.generate));
  return request;
}

void FillMetadata(const Frontend& frontend, inference::ModelMetadataResponse& out) {
  out.set_name(frontend.options().names.name);
  out.add_versions(kVersion);
  out.set_platform("diffserve_" + frontend.model_config().family);
  AddTensor("text_input", "BYTES", 1, *out.mutable_inputs());
  AddTensor("input_ids", "INT32", -1, *out.mutable_inputs());
  AddTensor("text_output", "BYTES", 1, *out.mutable_outputs());
  AddTensor("output_ids", "INT32", -1, *out.mutable_outputs());
  AddTensor("finish_reason", "BYTES", 1, *out.mutable_outputs());
}

bool InferAnswer::Take(const ResponseEvent& event, inference::ModelInferResponse* out) {
  return std::visit([&](const auto& alternative) { return TakeOne(alternative, out); }, event);
}

bool InferAnswer::TakeOne(const ResponseStarted& started, inference::ModelInferResponse*) {
  if (!shape_.echo) return false;
  for (const PromptInfo& prompt : started.prompts) {
    text_ += prompt.text;
    ids_.insert(ids_.end(), prompt.token_ids.begin(), prompt.token_ids.end());
  }
  return false;
}

// The piece with the reason to finish waits for the end, which may be an error.
bool InferAnswer::TakeOne(const ResponseDelta& delta, inference::ModelInferResponse* out) {
  text_ += delta.text;
  for (const SampleResult& token : delta.tokens) ids_.push_back(token.token);
  if (delta.finish != FinishReason::kNone) finish_reason_ = OpenAiNameOf(delta.finish);
  if (!shape_.stream || delta.finish != FinishReason::kNone) return false;
  if (text_.empty() && ids_.empty()) return false;
  Fill(*out);
  return true;
}

bool InferAnswer::TakeOne(const ResponseDone& done, inference::ModelInferResponse* out) {
  done_ = true;
  status_ = done.status;
  if (!done.status.ok()) return false;
  Fill(*out);
  auto& parameters = *out->mutable_parameters();
  parameters["prompt_tokens"].set_int64_param(done.usage.prompt_tokens);
  parameters["completion_tokens"].set_int64_param(done.usage.completion_tokens);
  parameters["cached_tokens"].set_int64_param(done.usage.cached_tokens);
  return true;
}

void InferAnswer::Fill(inference::ModelInferResponse& out) {
  out.Clear();
  out.set_id(shape_.id);
  out.set_model_name(shape_.model);
  out.set_model_version(kVersion);
  SetFinal(done_, out);
  if (shape_.text) AddOutput("text_output", "BYTES", 1, Element(text_), out);
  if (shape_.ids) {
    std::string raw(ids_.size() * sizeof(int32_t), '\0');
    std::memcpy(raw.data(), ids_.data(), raw.size());
    AddOutput("output_ids", "INT32", ids_.size(), std::move(raw), out);
  }
  if (shape_.finish_reason) AddOutput("finish_reason", "BYTES", 1, Element(finish_reason_), out);
  text_.clear();
  ids_.clear();
}

void FillError(const Status& error, const std::string& id,
               inference::ModelStreamInferResponse& out) {
  out.Clear();
  Utf8Repair repair(Utf8Repair::Unit::kCharacter);  // a cited name may be cut within a character
  repair.Push(error.message(), *out.mutable_error_message());
  repair.Finish(*out.mutable_error_message());
  out.mutable_infer_response()->set_id(id);
  SetFinal(true, *out.mutable_infer_response());
}

}  // namespace diffserve
