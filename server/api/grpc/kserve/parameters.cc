// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/kserve/parameters.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>

#include "inference/grpc_service.pb.h"
#include "kernels/base/refusal.h"
#include "server/serving/request/sampling_numbers.h"

namespace diffserve {
namespace {

// One parameter of a request, with its type.
class Parameter {
 public:
  Parameter(const std::string& name, const inference::InferParameter& value)
      : name_(name), value_(value) {}

  Status Bool(bool* out) const {
    if (value_.parameter_choice_case() != inference::InferParameter::kBoolParam)
      return Expected("a boolean");
    *out = value_.bool_param();
    return {};
  }
  Status String(std::string* out) const {
    if (value_.parameter_choice_case() != inference::InferParameter::kStringParam)
      return Expected("a string");
    *out = value_.string_param();
    return {};
  }
  Status Int(int64_t low, int64_t high, int64_t* out) const {
    uint64_t bits = 0;
    if (!Integer(&bits)) return Expected("an integer");
    const bool too_large = IsUnsigned() &&
                           bits > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    *out = too_large ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(bits);
    if (!too_large && *out >= low && *out <= high) return {};
    return NotAllowed(name_ + " is " + (too_large ? std::to_string(bits) : std::to_string(*out)),
                      RangeText(low, high), name_);
  }
  template <typename To>
  Status Int32(To* out) const {
    int64_t value = 0;
    DS_RETURN_IF_ERROR(
        Int(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(), &value));
    *out = static_cast<int>(value);
    return {};
  }
  Status Bits(uint64_t* out) const { return Integer(out) ? Status() : Expected("an integer"); }
  Status Float(float* out) const {
    uint64_t bits = 0;
    if (value_.parameter_choice_case() == inference::InferParameter::kDoubleParam) {
      *out = static_cast<float>(value_.double_param());
    } else if (Integer(&bits)) {
      *out = IsUnsigned() ? static_cast<float>(bits)
                          : static_cast<float>(static_cast<int64_t>(bits));
    } else {
      return Expected("a number");
    }
    return {};
  }

 private:
  bool IsUnsigned() const {
    return value_.parameter_choice_case() == inference::InferParameter::kUint64Param;
  }
  bool Integer(uint64_t* bits) const {
    if (IsUnsigned()) {
      *bits = value_.uint64_param();
      return true;
    }
    *bits = static_cast<uint64_t>(value_.int64_param());
    return value_.parameter_choice_case() == inference::InferParameter::kInt64Param;
  }
  Status Expected(const char* what) const {
    return NotAllowed(name_ + " has another type", what, name_);
  }

  const std::string& name_;
  const inference::InferParameter& value_;
};

// Settings from parameters, besides InferRequest's own members.
struct Choices {
  InferRequest& request;
  std::optional<bool> exclude_input;
};

struct ParameterRow {
  std::string_view name;
  Status (*read)(const Parameter& in, Choices& out);
};

// Those that are no SamplingNumber.
constexpr ParameterRow kParameters[] = {
    {"max_tokens",
     [](const Parameter& in, Choices& out) { return in.Int32(&out.request.generate.max_tokens); }},
    {"min_tokens",
     [](const Parameter& in, Choices& out) {
       return in.Int32(&out.request.generate.sampling.min_tokens);
     }},
    {"top_k", [](const Parameter& in,
                 Choices& out) { return in.Int32(&out.request.generate.sampling.top_k); }},
    {"seed", [](const Parameter& in,
                Choices& out) { return in.Bits(&out.request.generate.sampling.seed); }},
    {"stop",  // one
     [](const Parameter& in, Choices& out) {
       return in.String(&out.request.generate.stop.emplace_back());
     }},
    {"include_stop_str_in_output",
     [](const Parameter& in, Choices& out) {
       return in.Bool(&out.request.generate.include_stop_str_in_output);
     }},
    {"ignore_eos", [](const Parameter& in,
                      Choices& out) { return in.Bool(&out.request.generate.sampling.ignore_eos); }},
    {"skip_special_tokens",
     [](const Parameter& in, Choices& out) {
       return in.Bool(&out.request.generate.skip_special_tokens);
     }},
    {"cache_salt",
     [](const Parameter& in, Choices& out) { return in.String(&out.request.generate.cache_salt); }},
    {"priority",  // lower values begin first, as in Triton
     [](const Parameter& in, Choices& out) { return in.Int32(&out.request.generate.priority); }},
    {"timeout",  // microseconds
     [](const Parameter& in, Choices& out) {
       int64_t microseconds = 0;
       const int64_t most = std::chrono::microseconds(std::chrono::hours(24)).count();
       DS_RETURN_IF_ERROR(in.Int(1, most, &microseconds));
       out.request.timeout = std::chrono::microseconds(microseconds);
       return Status();
     }},
    {"stream",  // of ModelStreamInfer, where it is the default
     [](const Parameter& in, Choices& out) { return in.Bool(&out.request.shape.stream); }},
    {"exclude_input_in_output",  // default: true only for streams, as Triton's vLLM backend
     [](const Parameter& in, Choices& out) { return in.Bool(&out.exclude_input.emplace()); }},
    {"triton_enable_empty_final_response",  // the last response is marked, even if empty
     [](const Parameter& in, Choices&) {
       bool ignored = false;
       return in.Bool(&ignored);
     }},
};

}  // namespace

Status ReadInferParameters(const inference::ModelInferRequest& message, bool streams,
                           InferRequest& to) {
  Choices choices{to, std::nullopt};
  to.shape.stream = streams;
  for (const auto& [name, value] : message.parameters()) {
    const Parameter parameter(name, value);
    if (const SamplingNumber* number = FindSamplingNumber(name)) {
      DS_RETURN_IF_ERROR(parameter.Float(&(to.generate.sampling.*number->member)));
      continue;
    }
    const auto row = std::ranges::find(kParameters, std::string_view(name), &ParameterRow::name);
    if (row == std::end(kParameters)) {
      return InvalidArgument("the parameter " + Cited(name) + " is not supported by this server",
                             name.substr(0, kMaxCitedBytes));
    }
    DS_RETURN_IF_ERROR(row->read(parameter, choices));
  }
  if (to.shape.stream && !streams)
    return NotAllowed("stream is true in ModelInfer", "false; ModelStreamInfer streams", "stream");
  if (to.shape.stream && choices.exclude_input == false) {
    return NotAllowed("exclude_input_in_output is false with stream", "true",
                      "exclude_input_in_output");
  }
  to.shape.echo = !choices.exclude_input.value_or(to.shape.stream);
  to.generate.want_prompt_text = to.shape.echo;
  to.generate.holds = to.shape.stream ? AnswerHolds::kEvents : AnswerHolds::kTokens;
  return {};
}

}  // namespace diffserve
