// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/vllm_native/messages.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "kernels/base/refusal.h"
#include "server/api/fields/structured_fields.h"
#include "server/api/grpc/wire_fields.h"
#include "server/api/grpc/wire_request.h"
#include "server/serving/build_version.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr char kApiVersion[] = "vllm";  // the only one that clients of this API know
constexpr uint32_t kKvEventSchema = 1;

// With kInvalidArgument: clients take kUnimplemented for a fault of the server.
Status RefuseUnserved(const native_v1::GenerateRequest& message) {
  const std::string none = "none";
  if (!message.media().empty())
    return NotAllowed("media is set", none + ": models read text", "media");
  if (!message.lora_name().empty()) {
    return NotAllowed("lora_name is set", none + ": there are no adapters", "lora_name");
  }
  const native_v1::KVCacheParameters& kv = message.kv();
  const std::string why = none + ": KV pages are not transferred between servers";
  if (kv.has_kv_transfer_params())
    return NotAllowed("kv_transfer_params is set", why, "kv_transfer_params");
  if (kv.has_ec_transfer_params())
    return NotAllowed("ec_transfer_params is set", why, "ec_transfer_params");
  if (!kv.bypass_prefix_cache()) return {};
  return NotAllowed("bypass_prefix_cache is true",
                    "false; a cache_salt of its own keeps a prompt apart", "bypass_prefix_cache");
}

Status ReadPrompt(const native_v1::GenerateRequest& message, GenerateRequest* out) {
  switch (message.prompt_case()) {
    case native_v1::GenerateRequest::kText:
      out->names.prompt = "text";
      out->prompts.emplace_back(message.text());
      return {};
    case native_v1::GenerateRequest::kTokenIds: {
      out->names.prompt = "token_ids";
      std::vector<int32_t> ids;
      DS_RETURN_IF_ERROR(ToIds(message.token_ids().ids(), "token_ids", &ids));
      out->prompts.emplace_back(std::move(ids));
      return {};
    }
    case native_v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return Missing("prompt", "text, token_ids");
}

Status ReadDecoding(const native_v1::GenerateRequest& message, GenerateRequest* out) {
  const native_v1::RandomSampling& sampling = message.sampling();
  const native_v1::DecodingParameters& decoding = message.decoding();
  SamplingSpec& spec = out->sampling;
  ReadSamplingNumbers(message, &spec);
  ReadSamplingNumbers(sampling, &spec);
  ReadSamplingNumbers(decoding, &spec);
  if (sampling.top_k() != 0) DS_RETURN_IF_ERROR(ToInt(sampling.top_k(), "top_k", &spec.top_k));
  if (sampling.has_seed()) spec.seed = static_cast<uint64_t>(sampling.seed());
  DS_RETURN_IF_ERROR(
      ToInt(std::max(sampling.num_sequences(), uint32_t{1}), "num_sequences", &out->n));
  for (const auto& [token, bias] : decoding.logit_bias()) {
    DS_RETURN_IF_ERROR(ToId(token, "logit_bias", &spec.logit_bias.emplace_back(0, bias).first));
  }
  // A map has no order; sorted, equal requests are equal.
  std::sort(spec.logit_bias.begin(), spec.logit_bias.end());
  return ToIds(decoding.allowed_token_ids(), "allowed_token_ids", &out->allowed_token_ids);
}

Status ReadStructure(const native_v1::DecodingParameters& in, std::optional<GrammarSpec>* out) {
  using Kind = GrammarSpec::Kind;
  switch (in.structured_output_case()) {
    case native_v1::DecodingParameters::kJson:
      *out = GrammarSpec{Kind::kJsonSchema, in.json(), "json"};
      break;
    case native_v1::DecodingParameters::kRegex:
      *out = GrammarSpec{Kind::kRegex, in.regex(), "regex"};
      break;
    case native_v1::DecodingParameters::kChoice:
      if (in.choice().choices().empty()) return IsEmpty("choice", "at least 1 text");
      *out = GrammarSpec{Kind::kChoice, JsonListOf(in.choice().choices()), "choice"};
      break;
    case native_v1::DecodingParameters::kGrammar:
      *out = GrammarSpec{GrammarKindOf(in.grammar()), in.grammar(), "grammar"};
      break;
    case native_v1::DecodingParameters::kJsonObject:
      if (in.json_object()) *out = GrammarSpec{Kind::kJsonObject, "", "json_object"};
      break;
    case native_v1::DecodingParameters::kStructuralTag:
      *out = GrammarSpec{Kind::kStructuralTag, in.structural_tag(), "structural_tag"};
      break;
    case native_v1::DecodingParameters::STRUCTURED_OUTPUT_NOT_SET:
      break;
  }
  return {};
}

Status ReadStopping(const native_v1::StoppingCriteria& in, GenerateRequest* out) {
  if (in.max_new_tokens() != 0) {
    DS_RETURN_IF_ERROR(
        ToInt(in.max_new_tokens(), out->names.max_tokens, &out->max_tokens.emplace()));
  }
  DS_RETURN_IF_ERROR(ToInt(in.min_new_tokens(), "min_new_tokens", &out->sampling.min_tokens));
  DS_RETURN_IF_ERROR(ToIds(in.stop_token_ids(), "stop_token_ids", &out->sampling.stop_token_ids));
  out->stop.assign(in.stop_strings().begin(), in.stop_strings().end());
  out->include_stop_str_in_output = in.include_stop_strings();
  out->sampling.ignore_eos = in.ignore_eos();
  return {};
}

// How many alternatives to each token are requested; -1: no scores at all.
Status ReadCandidates(bool with_scores, const native_v1::CandidateTokens* candidates,
                      const std::string& field, int* out) {
  *out = with_scores ? 0 : -1;
  if (candidates == nullptr) return {};
  if (!with_scores) {
    return OnlyWith(field, field == "prompt_candidates" ? "prompt_logprobs" : "output_logprobs");
  }
  if (candidates->has_token_ids() || candidates->all())
    return NotAllowed(field + " names tokens or all of them", "top_n", field);
  DS_RETURN_IF_ERROR(ToInt(candidates->top_n(), field.c_str(), out));
  return CheckLogprobs(*out, field.c_str());
}

Status ReadShown(const native_v1::ResponseOptions& in, NativeRequest* out) {
  SamplingSpec& sampling = out->generate.sampling;
  DS_RETURN_IF_ERROR(ReadCandidates(in.prompt_logprobs(),
                                    in.has_prompt_candidates() ? &in.prompt_candidates() : nullptr,
                                    "prompt_candidates", &sampling.prompt_logprobs));
  DS_RETURN_IF_ERROR(ReadCandidates(in.output_logprobs(),
                                    in.has_output_candidates() ? &in.output_candidates() : nullptr,
                                    "output_candidates", &sampling.num_logprobs));
  if (in.has_output_text()) out->shows_text = in.output_text();
  if (in.has_skip_special_tokens()) out->generate.skip_special_tokens = in.skip_special_tokens();
  out->shows_token_ids = in.output_token_ids();
  out->shows_prompt_ids = in.prompt_token_ids();
  return {};
}

// A token's score, its rank, and the alternatives without the token itself. Without scores: zeros.
template <typename Out>
void FillScore(const SampleResult& score, Out& out) {
  out.add_logprobs(score.logprob);
  native_v1::CandidateTokenInfo& candidates = *out.add_candidate_tokens();
  uint32_t rank = 0, rank_of_token = 0;
  for (const TokenLogprob& other : score.top_logprobs) {
    ++rank;
    if (other.token == score.token) {
      rank_of_token = rank;
      continue;
    }
    native_v1::CandidateTokenInfo::TokenInfo& info = *candidates.add_tokens();
    info.set_id(static_cast<uint32_t>(other.token));
    info.set_logprob(other.logprob);
    info.set_rank(rank);
  }
  out.add_ranks(rank_of_token);
}

void FillFinish(const ResponseDelta& delta, uint32_t num_tokens, native_v1::FinishInfo& out) {
  out.set_num_output_tokens(num_tokens);
  if (delta.finish == FinishReason::kCancelled) {
    return out.set_finish_reason(native_v1::FinishInfo::ABORTED);
  }
  if (delta.finish == FinishReason::kLength) {
    return out.set_finish_reason(native_v1::FinishInfo::LENGTH);
  }
  out.set_finish_reason(native_v1::FinishInfo::STOP);
  if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) {
    out.set_stop_string(*text);
  } else if (const auto* id = std::get_if<int32_t>(&delta.stop_reason)) {
    out.set_stop_token_id(static_cast<uint32_t>(*id));
  } else if (!delta.tokens.empty()) {
    out.set_eos_token_id(static_cast<uint32_t>(delta.tokens.back().token));
  }
}

}  // namespace

Result<NativeRequest> FromProto(const native_v1::GenerateRequest& message,
                                const SamplingSpec& defaults, bool whole) {
  NativeRequest request;
  request.whole = whole;
  GenerateRequest& generate = request.generate;
  generate.names.max_tokens = "max_new_tokens";
  generate.names.n = "num_sequences";
  DS_RETURN_IF_ERROR(RefuseUnserved(message));
  generate.request_id = message.request_id();
  generate.model = message.model();
  DS_RETURN_IF_ERROR(ReadPrompt(message, &generate));
  generate.sampling = defaults;
  DS_RETURN_IF_ERROR(ReadDecoding(message, &generate));
  if (whole && generate.n > 1) {
    return NotAllowed("num_sequences is " + std::to_string(generate.n), "1, or GenerateStream",
                      "num_sequences");
  }
  DS_RETURN_IF_ERROR(ReadStructure(message.decoding(), &generate.grammar));
  DS_RETURN_IF_ERROR(ReadStopping(message.stopping(), &generate));
  DS_RETURN_IF_ERROR(ReadShown(message.response(), &request));
  if (message.truncate_prompt_tokens() != 0) {
    DS_RETURN_IF_ERROR(ToInt(message.truncate_prompt_tokens(), "truncate_prompt_tokens",
                             &generate.truncate_prompt_tokens.emplace()));
  }
  generate.priority = message.priority();
  generate.cache_salt = message.kv().cache_salt();
  generate.holds = whole ? AnswerHolds::kTokens : AnswerHolds::kEvents;
  return request;
}

NativeAnswer::NativeAnswer(const NativeRequest& request)
    : whole_(request.whole),
      shows_text_(request.shows_text),
      shows_token_ids_(request.shows_token_ids),
      shows_prompt_ids_(request.shows_prompt_ids),
      num_logprobs_(request.generate.sampling.num_logprobs),
      sequences_(static_cast<size_t>(request.generate.n)) {}

void NativeAnswer::Append(const ResponseEvent& event, Messages* out) {
  std::visit([&](const auto& alternative) { AppendOne(alternative, out); }, event);
}

void NativeAnswer::AppendOne(const ResponseStarted& started, Messages*) {
  prompt_ = started.prompts.front().token_ids;
}

// All sequences have the same.
void NativeAnswer::AppendOne(const ResponsePromptLogprobs& scores, Messages*) {
  scores_ = scores.tokens;
}

void NativeAnswer::AppendOne(const ResponseDelta& delta, Messages* out) {
  Sequence& sequence = sequences_[static_cast<size_t>(delta.choice)];
  if (shows_text_) sequence.text += delta.text;
  // An error ends the call.
  if (delta.finish == FinishReason::kError) return;
  if (delta.tokens.empty() && delta.finish == FinishReason::kNone) return;
  native_v1::GenerateResponse& message = whole_ ? collected_ : out->emplace_back();
  if (!std::exchange(has_begun_, true)) FillPrompt(*message.mutable_prompt_info());
  native_v1::SequenceOutput& output = *message.mutable_outputs();
  output.set_index(static_cast<uint32_t>(delta.choice));
  output.mutable_text()->append(std::exchange(sequence.text, {}));
  FillTokens(delta, output);
  sequence.num_tokens += static_cast<uint32_t>(delta.tokens.size());
  if (delta.finish != FinishReason::kNone)
    FillFinish(delta, sequence.num_tokens, *output.mutable_finish_info());
}

void NativeAnswer::FillTokens(const ResponseDelta& delta, native_v1::SequenceOutput& out) const {
  out.set_num_tokens(out.num_tokens() + static_cast<uint32_t>(delta.tokens.size()));
  for (const SampleResult& token : delta.tokens) {
    if (shows_token_ids_) out.add_token_ids(static_cast<uint32_t>(token.token));
    if (num_logprobs_ >= 0) FillScore(token, out);
  }
}

void NativeAnswer::FillPrompt(native_v1::PromptInfo& out) const {
  out.set_num_prompt_tokens(static_cast<uint32_t>(prompt_.size()));
  for (size_t i = 0; i < prompt_.size(); ++i) {
    if (shows_prompt_ids_) out.add_token_ids(static_cast<uint32_t>(prompt_.ids()[i]));
    if (scores_ != nullptr) FillScore(i == 0 ? SampleResult() : (*scores_)[i - 1], out);
  }
}

void NativeAnswer::AppendOne(const ResponseDone& done, Messages* out) {
  if (whole_ && done.status.ok()) out->push_back(std::move(collected_));
}

void FillModelInfo(const Frontend& frontend, const std::string& model_root,
                   native_v1::ModelInfo& out) {
  const ServedNames& names = frontend.options().names;
  out.set_model_id(model_root);
  out.set_served_model_name(names.name);
  for (const std::string& name : names.further) out.add_served_model_aliases(name);
  out.set_supports_text_input(true);
  out.set_supports_token_ids_input(true);
}

void FillServerInfo(const EngineOptions& engine, const std::string& instance_id,
                    native_v1::ServerInfo& out) {
  out.set_engine_version("diffserve " + std::string(BuildVersion()));
  out.set_api_version(kApiVersion);
  out.set_instance_id(instance_id);
  native_v1::ParallelismInfo& parallelism = *out.mutable_parallelism();
  parallelism.set_tensor_parallel_size(1);
  parallelism.set_pipeline_parallel_size(1);
  parallelism.set_data_parallel_size(1);
  parallelism.set_decode_context_parallel_size(1);
  parallelism.set_world_size(1);
  parallelism.set_data_parallel_size_local(1);
  out.set_max_model_len(static_cast<uint32_t>(engine.max_model_len));
  out.set_kv_block_size(static_cast<uint32_t>(engine.page_size));
  out.set_total_kv_blocks(static_cast<uint64_t>(engine.num_pages));
  out.set_max_running_requests(static_cast<uint64_t>(engine.MaxRunning()));
  out.set_max_batched_tokens(static_cast<uint64_t>(engine.max_num_batched_tokens));
}

void FillKvEventSources(const std::optional<KvEventSource>& source,
                        native_v1::GetKvEventSourcesResponse& out) {
  if (!source) return;
  native_v1::KvEventSource& to = *out.add_sources();
  to.set_transport("zmq");
  to.set_endpoint(source->endpoint);
  to.set_topic(source->topic);
  to.set_replay_endpoint(source->replay_endpoint);
  to.set_data_parallel_rank(0);
  to.set_encoding("msgpack");
  to.set_schema_version(kKvEventSchema);
  to.set_buffer_steps(static_cast<uint32_t>(source->max_replay_batches));
  to.set_hwm(static_cast<uint32_t>(source->max_unread_batches));
  to.set_max_queue_size(static_cast<uint32_t>(source->max_queued_batches));
}

}  // namespace diffserve
