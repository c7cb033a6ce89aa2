// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/request.h"

#include <algorithm>
#include <span>
#include <utility>

#include "server/api/fields/chat_fields.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/fields/structured_fields.h"
#include "server/api/fields/tool_fields.h"
#include "server/serving/request_checks.h"

namespace diffserve {
namespace {

using Names = std::span<const std::string_view>;

// Members with effect, besides kGenerationFields.
constexpr std::string_view kGenerateFields[] = {"model",
                                                "logprobs",
                                                "prompt_logprobs",
                                                "echo",
                                                "stream",
                                                "stream_options",
                                                "cache_salt",
                                                "priority",
                                                "return_token_ids",
                                                "return_tokens_as_token_ids",
                                                "add_special_tokens"};
constexpr std::string_view kCompletionFields[] = {"prompt"};
constexpr std::string_view kChatFields[] = {"messages", "top_logprobs", "add_generation_prompt",
                                            "continue_final_message", "chat_template_kwargs"};

// Members without effect, whatever their value.
constexpr std::string_view kHarmlessFields[] = {"user",
                                                "metadata",
                                                "prediction",
                                                "store",
                                                "service_tier",
                                                "safety_identifier",
                                                "prompt_cache_key",
                                                "prompt_cache_retention",
                                                "verbosity",
                                                "parallel_tool_calls",
                                                "request_id",
                                                "session_id",
                                                "include_reasoning",
                                                "spaces_between_special_tokens",
                                                "length_penalty",
                                                "stream_interval",
                                                "rid",
                                                "routed_dp_rank",
                                                "cache_prompt",
                                                "id_slot",
                                                "timings_per_token",
                                                "repeat_last_n",
                                                "dynatemp_exponent",
                                                "xtc_threshold",
                                                "dry_base",
                                                "dry_allowed_length",
                                                "dry_penalty_last_n",
                                                "dry_sequence_breakers",
                                                "mirostat_tau",
                                                "mirostat_eta",
                                                "repetition_ngram_threshold"};

// Known and unsupported members: refused unless null, false, 0, or empty.
constexpr std::string_view kUnsupportedFields[] = {"functions",
                                                   "audio",
                                                   "suffix",
                                                   "use_beam_search",
                                                   "guided_decoding_backend",
                                                   "guided_whitespace_pattern",
                                                   "grammar",
                                                   "stop_regex",
                                                   "prompt_embeds",
                                                   "input_embeds",
                                                   "lora",
                                                   "lora_path",
                                                   "lora_request",
                                                   "logits_processors",
                                                   "custom_logit_processor",
                                                   "logprob_token_ids",
                                                   "kv_transfer_params",
                                                   "ec_transfer_params",
                                                   "vllm_xargs",
                                                   "repetition_detection",
                                                   "reasoning",
                                                   "web_search_options",
                                                   "documents",
                                                   "chat_template",
                                                   "mm_processor_kwargs",
                                                   "media_io_kwargs",
                                                   "return_token_offsets",
                                                   "return_prompt_text",
                                                   "return_assistant_tokens_mask",
                                                   "return_hidden_states",
                                                   "early_stopping",
                                                   "moderation",
                                                   "no_stop_trim",
                                                   "token_ids_logprob",
                                                   "session_params",
                                                   "custom_params",
                                                   "return_context_logits",
                                                   "disaggregated_params",
                                                   "input_ids",
                                                   "n_predict",
                                                   "n_probs",
                                                   "n_cmpl",
                                                   "min_new_tokens",
                                                   "min_keep",
                                                   "samplers",
                                                   "t_max_predict_ms",
                                                   "post_sampling_probs",
                                                   "return_tokens"};
// Likewise, with other values that mean "off".
constexpr std::string_view kConditionalFields[] = {"function_call", "modalities"};

// Unsupported samplers, each with the value that turns it off.
struct ForeignSampler {
  std::string_view name;
  float off;
};
constexpr ForeignSampler kForeignSamplers[] = {
    {"repeat_penalty", 1},  {"typical_p", 1},      {"top_n_sigma", -1},
    {"xtc_probability", 0}, {"dynatemp_range", 0}, {"dry_multiplier", 0},
    {"mirostat", 0},        {"top_p_min", 0},      {"repetition_ngram_size", 0}};

bool Contains(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// An alternative to an unsupported member, for the error message.
std::string_view InsteadOf(std::string_view name) {
  if (name == "suffix")
    return ": text can only be continued, not filled in; give all of it in the prompt";
  if (name == "use_beam_search" || name == "early_stopping")
    return ": continuations are sampled; ask for n with logprobs, and choose";
  constexpr std::pair<std::string_view, std::string_view> kOurNames[] = {
      {"n_predict", ": use max_tokens"},
      {"n_probs", ": use logprobs"},
      {"n_cmpl", ": use n"},
      {"min_new_tokens", ": use min_tokens"},
      {"no_stop_trim", ": use include_stop_str_in_output"},
      {"return_tokens", ": use return_token_ids"},
      {"repeat_penalty", " other than 1: use repetition_penalty"},
      {"typical_p", " other than 1"},
      {"input_ids", ": /v1/completions takes them as prompt"}};
  for (const auto& [theirs, instead] : kOurNames) {
    if (name == theirs) return instead;
  }
  return "";
}

void RefuseUnsupported(JsonFields& fields) {
  for (const std::string_view name : kUnsupportedFields) {
    if (!fields.IsOff(name)) fields.Fail(Unsupported(name, InsteadOf(name)));
  }
  for (const auto& [name, off] : kForeignSamplers) {
    float value = off;
    fields.Float(name, &value);
    if (value != off) fields.Fail(Unsupported(name, InsteadOf(name)));
  }
  std::string choice = "none";
  if (fields.IsString("function_call"))
    fields.String("function_call", kMaxNameBytes, &choice);
  else if (!fields.IsOff("function_call"))
    choice = "object";
  if (choice != "none" && choice != "auto")
    fields.Fail(Unsupported("function_call", " other than none or auto"));
  std::vector<std::string> modalities;
  fields.StringOrStrings("modalities", 16, &modalities);
  for (const std::string& modality : modalities) {
    if (modality != "text") fields.Fail(Unsupported("modalities", " other than text"));
  }
}

// For a route without tools.
void RefuseTools(JsonFields& fields) {
  for (const std::string_view name : kToolFields) {
    if (!fields.IsOff(name)) fields.Fail(Unsupported(name, " for completions"));
  }
}

// Whether both generating routes use this member or refuse it by name.
bool IsServedOrRefused(std::string_view name) {
  return Contains(kGenerateFields, name) || Contains(kGenerationFields, name) ||
         Contains(kUnsupportedFields, name) || Contains(kConditionalFields, name) ||
         std::ranges::find(kForeignSamplers, name, &ForeignSampler::name) !=
             std::end(kForeignSamplers) ||
         Contains(StructuredFieldNames(), name) || Contains(kToolFields, name);
}

void RefuseUnknown(JsonFields& fields, Names known) {
  for (const std::string& name : fields.Names()) {
    if (Contains(known, name) || Contains(kHarmlessFields, name) || IsServedOrRefused(name))
      continue;
    const std::string shown = name.substr(0, 64);
    fields.Fail(
        InvalidArgument("unknown member '" + shown + "' (the server runs with --strict)", shown));
  }
}

// All members that both generating routes share.
void ReadCommon(JsonFields& fields, std::string_view body, const ReadContext& context,
                OpenAiRequest* request) {
  const FrontendOptions& limits = *context.limits;
  GenerateRequest& generate = request->generate;
  RefuseUnsupported(fields);
  generate.sampling = context.default_sampling;
  fields.String("model", kMaxTextBytes, &generate.model);
  ReadGeneration(fields, limits, &generate);
  fields.Int("priority", &generate.priority);
  if (fields.Has("add_special_tokens")) {
    bool add = false;
    fields.Bool("add_special_tokens", &add);
    generate.add_special_tokens = add;
  }
  fields.String("cache_salt", limits.max_cache_salt_bytes, &generate.cache_salt);
  fields.Bool("return_token_ids", &request->return_token_ids);
  fields.Bool("return_tokens_as_token_ids", &request->tokens_as_ids);
  fields.Bool("echo", &request->echo);
  ReadStream(fields, request);
  ReadStructuredFields(fields, body, &generate);
  ReadLogprobs(fields, "prompt_logprobs", limits, &request->prompt_logprobs);
  generate.prompt_logprobs = request->prompt_logprobs;
}

void ReadTextPrompts(JsonFields& fields, const FrontendOptions& limits,
                     std::vector<Prompt>* prompts) {
  if (!fields.Has("prompt")) fields.Fail(InvalidArgument("prompt is missing", "prompt"));
  std::vector<JsonFields::TextOrIds> values;
  fields.Prompts("prompt", limits.max_prompts, &values);
  for (JsonFields::TextOrIds& value : values) {
    if (auto* text = std::get_if<std::string>(&value))
      prompts->emplace_back(std::move(*text));
    else
      prompts->emplace_back(std::get<std::vector<int32_t>>(std::move(value)));
  }
}

AnswerHolds Holds(const OpenAiRequest& request) {
  if (request.stream) return AnswerHolds::kEvents;
  return request.logprobs || request.return_token_ids ? AnswerHolds::kTokens : AnswerHolds::kText;
}

}  // namespace

bool IsChatMember(std::string_view name) {
  return Contains(kChatFields, name) || IsServedOrRefused(name);
}

Result<OpenAiRequest> ParseCompletionRequest(std::string_view body, const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  OpenAiRequest request;
  GenerateRequest& generate = request.generate;
  ReadCommon(fields, body, context, &request);
  RefuseTools(fields);
  if (context.strict) RefuseUnknown(fields, kCompletionFields);
  ReadTextPrompts(fields, *context.limits, &generate.prompts);
  ReadLogprobs(fields, "logprobs", *context.limits, &generate.sampling.num_logprobs);
  request.logprobs = generate.sampling.num_logprobs >= 0;
  generate.max_tokens_default = 16;  // the API's own default for this route
  if (request.echo) {
    generate.want_prompt_text = true;
    generate.prompt_logprobs = std::max(generate.prompt_logprobs, generate.sampling.num_logprobs);
    // An echo without output still needs a pass over the prompt. The engine runs such a request
    // only to score the prompt.
    if (generate.max_tokens == 0) generate.prompt_logprobs = std::max(generate.prompt_logprobs, 0);
  }
  if (!fields.status().ok()) return fields.status();
  generate.holds = Holds(request);
  return request;
}

Result<OpenAiRequest> ParseChatRequest(std::string_view body, const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  OpenAiRequest request;
  request.chat = true;
  ReadCommon(fields, body, context, &request);
  if (context.strict) RefuseUnknown(fields, kChatFields);
  request.generate.prompts.emplace_back(ReadConversation(fields, /*add_generation_prompt=*/true));
  fields.Bool("logprobs", &request.logprobs);
  int top_logprobs = 0;
  ReadLogprobs(fields, "top_logprobs", *context.limits, &top_logprobs);
  if (top_logprobs > 0 && !request.logprobs) {
    fields.Fail(InvalidArgument("top_logprobs is allowed only with logprobs", "top_logprobs"));
  }
  if (request.logprobs) request.generate.sampling.num_logprobs = top_logprobs;
  if (request.echo) fields.Fail(Unsupported("echo", " for chat"));
  ReadTools(fields, *context.limits, &request);
  if (!fields.status().ok()) return fields.status();
  request.generate.holds = Holds(request);
  return request;
}

Result<TokenizeRequest> ParseTokenizeRequest(std::string_view body, const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  TokenizeRequest request;
  fields.String("model", kMaxTextBytes, &request.model);
  fields.Bool("return_token_strs", &request.return_token_strs);
  if (fields.Has("messages")) {
    request.prompt = ReadConversation(fields, /*add_generation_prompt=*/true);
    request.add_special_tokens = false;
  } else {
    std::string text;
    if (!fields.Has("prompt")) fields.Fail(InvalidArgument("prompt is missing", "prompt"));
    fields.String("prompt", kMaxTextBytes, &text);
    request.prompt = std::move(text);
  }
  fields.Bool("add_special_tokens", &request.add_special_tokens);
  constexpr std::string_view kKnown[] = {"prompt",
                                         "messages",
                                         "return_token_strs",
                                         "add_generation_prompt",
                                         "continue_final_message",
                                         "chat_template_kwargs"};
  if (context.strict) RefuseUnknown(fields, kKnown);
  if (!fields.status().ok()) return fields.status();
  return request;
}

Result<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body,
                                                 const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  DetokenizeRequest request;
  fields.String("model", kMaxTextBytes, &request.model);
  if (!fields.Has("tokens")) fields.Fail(InvalidArgument("tokens is missing", "tokens"));
  constexpr std::string_view kKnown[] = {"tokens"};
  fields.Ints("tokens", kMaxDetokenizeIds, &request.tokens);
  if (context.strict) RefuseUnknown(fields, kKnown);
  if (!fields.status().ok()) return fields.status();
  return request;
}

}  // namespace diffserve
