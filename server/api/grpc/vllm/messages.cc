// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/vllm/messages.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "kernels/base/refusal.h"
#include "server/api/fields/structured_fields.h"
#include "server/api/grpc/wire_fields.h"
#include "server/api/grpc/wire_request.h"
#include "server/json/json_writer.h"
#include "server/serving/build_version.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

Status NotOffered(const char* field, const std::string& why) {
  return Status(StatusCode::kUnimplemented,
                std::string(field) + " is not supported by this server: " + why, field);
}

void ReadSampling(const vllm_v1::SamplingParams& in, SamplingParams* out) {
  ReadSamplingNumbers(in, out);
  if (in.has_seed()) out->seed = static_cast<uint64_t>(int64_t{in.seed()});
  // A map has no order; sorted, equal requests are equal.
  for (const auto& [token, bias] : in.logit_bias()) out->logit_bias.emplace_back(token, bias);
  std::sort(out->logit_bias.begin(), out->logit_bias.end());
}

Status ReadConstraint(const vllm_v1::SamplingParams& in, std::optional<GrammarSpec>* out) {
  using Kind = GrammarSpec::Kind;
  switch (in.constraint_case()) {
    case vllm_v1::SamplingParams::kJsonSchema:
      *out = GrammarSpec{Kind::kJsonSchema, in.json_schema(), "json_schema"};
      break;
    case vllm_v1::SamplingParams::kRegex:
      *out = GrammarSpec{Kind::kRegex, in.regex(), "regex"};
      break;
    case vllm_v1::SamplingParams::kGrammar:
      *out = GrammarSpec{GrammarKindOf(in.grammar()), in.grammar(), "grammar"};
      break;
    case vllm_v1::SamplingParams::kStructuralTag:
      *out = GrammarSpec{Kind::kStructuralTag, in.structural_tag(), "structural_tag"};
      break;
    case vllm_v1::SamplingParams::kJsonObject:
      if (in.json_object()) *out = GrammarSpec{Kind::kJsonObject, "", "json_object"};
      break;
    case vllm_v1::SamplingParams::kChoice:
      if (in.choice().choices().empty()) return IsEmpty("choice", "at least 1 text");
      *out = GrammarSpec{Kind::kChoice, JsonListOf(in.choice().choices()), "choice"};
      break;
    case vllm_v1::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
  return {};
}

Status ReadLogprobs(const vllm_v1::SamplingParams& in, GenerateRequest* out) {
  out->sampling.num_logprobs = -1;
  if (in.has_logprobs()) {
    DS_RETURN_IF_ERROR(CheckLogprobs(in.logprobs(), "logprobs"));
    out->sampling.num_logprobs = in.logprobs();
  }
  if (in.has_prompt_logprobs()) {
    DS_RETURN_IF_ERROR(CheckLogprobs(in.prompt_logprobs(), "prompt_logprobs"));
    out->sampling.prompt_logprobs = in.prompt_logprobs();
  }
  return {};
}

Status ReadParams(const vllm_v1::SamplingParams& in, GenerateRequest* out) {
  ReadSampling(in, &out->sampling);
  DS_RETURN_IF_ERROR(ToInt(in.top_k(), "top_k", &out->sampling.top_k));
  if (in.has_max_tokens())
    DS_RETURN_IF_ERROR(ToInt(in.max_tokens(), "max_tokens", &out->max_tokens.emplace()));
  DS_RETURN_IF_ERROR(ToInt(in.min_tokens(), "min_tokens", &out->sampling.min_tokens));
  DS_RETURN_IF_ERROR(ToInt(std::max(in.n(), uint32_t{1}), "n", &out->n));
  out->stop.assign(in.stop().begin(), in.stop().end());
  DS_RETURN_IF_ERROR(ToIds(in.stop_token_ids(), "stop_token_ids", &out->sampling.stop_token_ids));
  out->skip_special_tokens = in.skip_special_tokens();
  out->sampling.ignore_eos = in.ignore_eos();
  out->include_stop_str_in_output = in.include_stop_str_in_output();
  if (in.has_truncate_prompt_tokens()) out->truncate_prompt_tokens = in.truncate_prompt_tokens();
  DS_RETURN_IF_ERROR(ReadLogprobs(in, out));
  return ReadConstraint(in, &out->grammar);
}

Status RefuseTransfers(const vllm_v1::GenerateRequest& message) {
  if (message.has_mm_inputs()) return NotOffered("mm_inputs", "its models read text");
  const std::string why = "KV pages are not transferred between servers";
  if (message.has_kv_transfer_params()) return NotOffered("kv_transfer_params", why);
  if (!message.kv_transfer_params_json().empty()) return NotOffered("kv_transfer_params_json", why);
  if (message.data_parallel_rank() == 0) return {};
  return NotAllowed("data_parallel_rank is " + std::to_string(message.data_parallel_rank()),
                    "0, the only rank", "data_parallel_rank");
}

Status ReadIds(const vllm_v1::TokenizedInput& tokenized, GenerateRequest* out) {
  std::vector<int32_t> ids;
  DS_RETURN_IF_ERROR(ToIds(tokenized.input_ids(), "input_ids", &ids));
  out->prompts.emplace_back(std::move(ids));
  return {};
}

void Fill(const std::vector<TokenLogprob>& in, vllm_v1::TopLogProbs& out) {
  for (const TokenLogprob& other : in) {
    out.add_token_ids(static_cast<uint32_t>(other.token));
    out.add_values(other.logprob);
  }
}

void Append(const SampleResult& in, int num_logprobs, vllm_v1::OutputLogProbs& out) {
  out.add_token_ids(static_cast<uint32_t>(in.token));
  out.add_token_logprobs(in.logprob);
  if (num_logprobs > 0) Fill(in.top_logprobs, *out.add_top_logprobs());
}

// The settings of the model's generation_config as a JSON object; empty: none.
std::string DefaultsJson(const ModelConfig& config) {
  std::string members;
  JsonWriter json(&members);
  const auto add = [&json](const char* name, const auto& setting) {
    if (setting) json.Add(name, *setting);
  };
  add("temperature", config.default_temperature);
  add("top_p", config.default_top_p);
  add("min_p", config.default_min_p);
  add("top_k", config.default_top_k);
  add("max_tokens", config.default_max_tokens);
  add("repetition_penalty", config.default_repetition_penalty);
  if (members.empty()) return {};
  return JsonObjectOf([&members](JsonWriter& object) { object.Members(members); });
}

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S+00:00", &parts)};
}

double ShareOf(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

Result<VllmRequest> FromProto(const vllm_v1::GenerateRequest& message,
                              const SamplingSpec& defaults) {
  VllmRequest request;
  GenerateRequest& generate = request.generate;
  DS_RETURN_IF_ERROR(RefuseTransfers(message));
  generate.request_id = message.request_id();
  switch (message.input_case()) {
    case vllm_v1::GenerateRequest::kTokenized:
      generate.names.prompt = "tokenized";
      DS_RETURN_IF_ERROR(ReadIds(message.tokenized(), &generate));
      break;
    case vllm_v1::GenerateRequest::kText:
      generate.names.prompt = "text";
      generate.prompts.emplace_back(message.text());
      break;
    case vllm_v1::GenerateRequest::INPUT_NOT_SET:
      return Missing("input", "tokenized, text");
  }
  generate.sampling.seed = defaults.seed;
  DS_RETURN_IF_ERROR(ReadParams(message.sampling_params(), &generate));
  request.stream = message.stream();
  generate.holds = request.stream ? AnswerHolds::kEvents : AnswerHolds::kTokens;
  return request;
}

Result<EmbeddingRequest> FromProto(const vllm_v1::EmbedRequest& message,
                                   const SamplingSpec& defaults) {
  if (!message.has_tokenized()) return Missing("tokenized");
  EmbeddingRequest request;
  GenerateRequest& generate = request.generate;
  generate.request_id = message.request_id();
  generate.sampling = defaults;
  generate.max_tokens = 0;
  generate.names.prompt = generate.names.n = "tokenized";
  generate.holds = AnswerHolds::kText;
  DS_RETURN_IF_ERROR(ReadIds(message.tokenized(), &generate));
  return request;
}

VllmAnswer::VllmAnswer(const VllmRequest& request)
    : stream_(request.stream),
      num_outputs_(request.generate.n),
      num_logprobs_(request.generate.sampling.num_logprobs),
      num_prompt_logprobs_(request.generate.sampling.prompt_logprobs) {}

void VllmAnswer::Append(const ResponseEvent& event, Messages* out) {
  std::visit([&](const auto& alternative) { AppendOne(alternative, out); }, event);
}

void VllmAnswer::AppendOne(const ResponseStarted& started, Messages*) {
  prompt_ = started.prompts.front().token_ids;
  outputs_.resize(static_cast<size_t>(num_outputs_));
}

void VllmAnswer::AppendOne(const ResponsePromptLogprobs& scores, Messages*) {
  outputs_[static_cast<size_t>(scores.choice)].scores = scores.tokens;
}

void VllmAnswer::FillPrompt(const PromptScores& scores, vllm_v1::InputLogProbs& out) const {
  for (size_t i = 0; i < prompt_.size(); ++i) {
    const SampleResult* const score = i == 0 ? nullptr : &(*scores)[i - 1];
    vllm_v1::InputTokenLogProb& logprob = *out.add_token_logprobs();
    if (score != nullptr) logprob.set_value(score->logprob);
    out.add_token_ids(static_cast<uint32_t>(prompt_.ids()[i]));
    if (num_prompt_logprobs_ <= 0) continue;
    vllm_v1::TopLogProbs& top = *out.add_top_logprobs();
    if (score != nullptr) Fill(score->top_logprobs, top);
  }
}

void VllmAnswer::AppendOne(const ResponseDelta& delta, Messages* out) {
  Output& output = outputs_[static_cast<size_t>(delta.choice)];
  vllm_v1::GenerateComplete& complete = output.complete;
  const auto count = static_cast<uint32_t>(delta.tokens.size());
  complete.set_completion_tokens(complete.completion_tokens() + count);
  if (stream_ && count > 0) {
    vllm_v1::GenerateStreamChunk& chunk = *out->emplace_back().mutable_chunk();
    chunk.set_index(static_cast<uint32_t>(delta.choice));
    chunk.set_prompt_tokens(static_cast<uint32_t>(prompt_.size()));
    chunk.set_completion_tokens(count);
    if (const PromptScores scores = std::exchange(output.scores, nullptr))
      FillPrompt(scores, *chunk.mutable_input_logprobs());
    for (const SampleResult& token : delta.tokens) {
      chunk.add_token_ids(static_cast<uint32_t>(token.token));
      if (num_logprobs_ >= 0)
        diffserve::Append(token, num_logprobs_, *chunk.mutable_output_logprobs());
    }
  }
  if (!stream_) {
    for (const SampleResult& token : delta.tokens) {
      complete.add_output_ids(static_cast<uint32_t>(token.token));
      if (num_logprobs_ >= 0)
        diffserve::Append(token, num_logprobs_, *complete.mutable_output_logprobs());
    }
  }
  if (delta.finish == FinishReason::kNone) return;
  complete.set_finish_reason(OpenAiNameOf(delta.finish));
  if (const auto* text = std::get_if<std::string>(&delta.stop_reason))
    complete.set_matched_stop_str(*text);
  if (const auto* id = std::get_if<int32_t>(&delta.stop_reason))
    complete.set_matched_token_id(static_cast<uint32_t>(*id));
}

void VllmAnswer::AppendOne(const ResponseDone& done, Messages* out) {
  if (!done.status.ok()) return;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    vllm_v1::GenerateComplete& complete = *out->emplace_back().mutable_complete();
    complete = std::move(outputs_[i].complete);
    complete.set_index(static_cast<uint32_t>(i));
    complete.set_prompt_tokens(static_cast<uint32_t>(prompt_.size()));
    complete.set_cached_tokens(static_cast<uint32_t>(done.usage.cached_tokens));
    if (const PromptScores scores = std::exchange(outputs_[i].scores, nullptr))
      FillPrompt(scores, *complete.mutable_input_logprobs());
  }
}

void FillEmbedding(const std::vector<std::shared_ptr<HiddenStatePool>>& pools, const Usage& usage,
                   vllm_v1::EmbedResponse& out) {
  const std::span<const float> values = pools.front()->values();
  out.mutable_embedding()->Add(values.begin(), values.end());
  out.set_embedding_dim(static_cast<uint32_t>(values.size()));
  out.set_prompt_tokens(static_cast<uint32_t>(usage.prompt_tokens));
}

void FillModelInfo(const Frontend& frontend, const std::string& model_root, int max_model_len,
                   vllm_v1::GetModelInfoResponse& out) {
  const ModelConfig& config = frontend.model_config();
  out.set_model_path(model_root);
  out.set_tokenizer_path(model_root);
  out.set_served_model_name(frontend.options().names.name);
  out.set_is_generation(true);
  out.set_model_type(config.family);
  out.set_vocab_size(static_cast<uint32_t>(config.vocab_size));
  out.set_max_context_length(static_cast<uint32_t>(max_model_len));
  out.set_max_req_input_len(frontend.MaxTokens());
  out.mutable_eos_token_ids()->Add(config.eos_token_ids.begin(), config.eos_token_ids.end());
  out.set_bos_token_id(config.bos_token_id.value_or(0));
  out.set_default_sampling_params_json(DefaultsJson(config));
}

void FillServerInfo(const EngineStats& stats, std::chrono::steady_clock::duration uptime,
                    vllm_v1::GetServerInfoResponse& out) {
  out.set_active_requests(static_cast<uint32_t>(stats.running + stats.waiting));
  out.set_uptime_seconds(std::chrono::duration<double>(uptime).count());
  out.set_server_type("diffserve");
  out.set_data_parallel_size(1);
}

Status FillLoads(const vllm_v1::GetLoadsRequest& request, const EngineStats& stats,
                 const EngineOptions& engine, vllm_v1::GetLoadsResponse& out) {
  if (request.dp_rank() != 0) {
    return NotAllowed("dp_rank is " + std::to_string(request.dp_rank()), "0, the only rank",
                      "dp_rank");
  }
  out.set_timestamp(UtcNow());
  out.set_version(std::string(BuildVersion()));
  out.set_dp_rank_count(1);
  vllm_v1::SchedulerLoad& load = *out.add_loads();
  load.set_num_running_reqs(stats.running);
  load.set_num_waiting_reqs(stats.waiting);
  load.set_num_total_reqs(stats.running + stats.waiting);
  load.set_num_used_tokens(stats.pages_used * engine.page_size);
  load.set_max_total_num_tokens(stats.pages_total * engine.page_size);
  load.set_token_usage(ShareOf(stats.pages_used, stats.pages_total));
  load.set_cache_hit_rate(
      ShareOf(static_cast<double>(stats.prefix_hits), static_cast<double>(stats.prefix_queries)));
  load.set_max_running_requests(engine.max_num_seqs);
  load.set_utilization(ShareOf(stats.running, engine.max_num_seqs));
  return {};
}

}  // namespace diffserve
