#include "server/openai/request.h"

#include <algorithm>
#include <span>
#include <utility>

#include "server/openai/chat_fields.h"
#include "server/request_checks.h"

namespace diffserve {
namespace {

using Names = std::span<const std::string_view>;

// What we act on.
constexpr std::string_view kGenerateFields[] = {"model",
                                                "max_tokens",
                                                "max_completion_tokens",
                                                "temperature",
                                                "top_p",
                                                "top_k",
                                                "min_p",
                                                "presence_penalty",
                                                "frequency_penalty",
                                                "repetition_penalty",
                                                "logit_bias",
                                                "seed",
                                                "min_tokens",
                                                "stop",
                                                "stop_token_ids",
                                                "include_stop_str_in_output",
                                                "ignore_eos",
                                                "skip_special_tokens",
                                                "n",
                                                "best_of",
                                                "logprobs",
                                                "prompt_logprobs",
                                                "echo",
                                                "stream",
                                                "stream_options",
                                                "cache_salt",
                                                "return_token_ids",
                                                "add_special_tokens"};
constexpr std::string_view kCompletionFields[] = {"prompt"};
constexpr std::string_view kChatFields[] = {"messages", "top_logprobs", "add_generation_prompt",
                                            "chat_template_kwargs"};

// What changes nothing here, whatever its value.
constexpr std::string_view kHarmlessFields[] = {"user",
                                                "metadata",
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
                                                "stream_interval"};

// What we know and do not offer: refused unless it is null, false, 0, or empty.
constexpr std::string_view kUnsupportedFields[] = {"tools",
                                                   "functions",
                                                   "audio",
                                                   "prediction",
                                                   "suffix",
                                                   "use_beam_search",
                                                   "structured_outputs",
                                                   "guided_json",
                                                   "guided_regex",
                                                   "guided_choice",
                                                   "guided_grammar",
                                                   "guided_decoding_backend",
                                                   "guided_whitespace_pattern",
                                                   "regex",
                                                   "ebnf",
                                                   "json_schema",
                                                   "grammar",
                                                   "stop_regex",
                                                   "prompt_embeds",
                                                   "input_embeds",
                                                   "lora",
                                                   "lora_path",
                                                   "lora_request",
                                                   "logits_processors",
                                                   "custom_logit_processor",
                                                   "allowed_token_ids",
                                                   "bad_words",
                                                   "logprob_token_ids",
                                                   "truncate_prompt_tokens",
                                                   "truncation_side",
                                                   "kv_transfer_params",
                                                   "ec_transfer_params",
                                                   "vllm_xargs",
                                                   "repetition_detection",
                                                   "thinking_token_budget",
                                                   "reasoning_effort",
                                                   "reasoning",
                                                   "web_search_options",
                                                   "documents",
                                                   "chat_template",
                                                   "mm_processor_kwargs",
                                                   "media_io_kwargs",
                                                   "continue_final_message",
                                                   "return_tokens_as_token_ids",
                                                   "return_token_offsets",
                                                   "return_prompt_text",
                                                   "return_assistant_tokens_mask",
                                                   "return_hidden_states",
                                                   "priority",
                                                   "early_stopping"};
// Likewise, with values that mean "off".
constexpr std::string_view kConditionalFields[] = {"tool_choice", "function_call",
                                                   "response_format", "modalities"};

bool Contains(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void RefuseUnsupported(JsonFields& fields) {
  for (const std::string_view name : kUnsupportedFields) {
    if (!fields.IsOff(name)) fields.Fail(Unsupported(name));
  }
  for (const char* name : {"tool_choice", "function_call"}) {
    std::string choice = "none";
    if (fields.IsString(name))
      fields.String(name, kMaxNameBytes, &choice);
    else if (!fields.IsOff(name))
      choice = "object";
    if (choice != "none" && choice != "auto")
      fields.Fail(Unsupported(name, " other than none or auto"));
  }
  for (JsonFields& format : fields.Object("response_format")) {
    std::string type;
    format.String("type", kMaxNameBytes, &type);
    fields.Fail(format.status());
    if (type != "text") fields.Fail(Unsupported("response_format", " other than text"));
  }
  std::vector<std::string> modalities;
  fields.StringOrStrings("modalities", 16, &modalities);
  for (const std::string& modality : modalities) {
    if (modality != "text") fields.Fail(Unsupported("modalities", " other than text"));
  }
}

void RefuseUnknown(JsonFields& fields, Names known) {
  for (const std::string& name : fields.Names()) {
    if (Contains(known, name) || Contains(kGenerateFields, name) ||
        Contains(kHarmlessFields, name) || Contains(kUnsupportedFields, name) ||
        Contains(kConditionalFields, name)) {
      continue;
    }
    const std::string shown = name.substr(0, 64);
    fields.Fail(
        InvalidArgument("unknown member '" + shown + "' (the server runs with --strict)", shown));
  }
}

// -1, which stands for none inside, is refused.
void ReadLogprobs(JsonFields& fields, const char* name, const FrontendOptions& limits, int* out) {
  if (!fields.Has(name)) return;
  fields.Int(name, out);
  fields.Fail(CheckLogprobs(*out, limits, name));
}

void ReadSampling(JsonFields& fields, const FrontendOptions& limits, SamplingParams* sampling) {
  fields.Float("temperature", &sampling->temperature);
  fields.Float("top_p", &sampling->top_p);
  fields.Int("top_k", &sampling->top_k);
  if (sampling->top_k == -1) sampling->top_k = 0;  // both mean off
  fields.Float("min_p", &sampling->min_p);
  fields.Float("presence_penalty", &sampling->presence_penalty);
  fields.Float("frequency_penalty", &sampling->frequency_penalty);
  fields.Float("repetition_penalty", &sampling->repetition_penalty);
  fields.LogitBias("logit_bias", limits.max_logit_bias, &sampling->logit_bias);
  fields.Seed("seed", &sampling->seed);
}

void ReadLengths(JsonFields& fields, GenerateRequest* request) {
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (!fields.Has(name)) continue;
    fields.Int(name, &request->max_tokens.emplace());
    request->max_tokens_name = name;
  }
  fields.Int("min_tokens", &request->min_tokens);
  fields.Int("n", &request->n);
  int best_of = request->n;
  fields.Int("best_of", &best_of);
  if (best_of != 1 && best_of != request->n)
    fields.Fail(Unsupported("best_of", " other than 1 or n"));
}

void ReadStream(JsonFields& fields, OpenAiRequest* request) {
  fields.Bool("stream", &request->stream);
  for (JsonFields& options : fields.Object("stream_options")) {
    options.Bool("include_usage", &request->include_usage);
    options.Bool("continuous_usage_stats", &request->continuous_usage);
    fields.Fail(options.status());
    if (!request->stream)
      fields.Fail(InvalidArgument("stream_options is allowed only with stream", "stream_options"));
  }
}

// All members that both generating routes share.
void ReadCommon(JsonFields& fields, const OpenAiContext& context, OpenAiRequest* request) {
  const FrontendOptions& limits = *context.limits;
  GenerateRequest& generate = request->generate;
  RefuseUnsupported(fields);
  generate.sampling = context.default_sampling;
  fields.String("model", kMaxTextBytes, &generate.model);
  ReadSampling(fields, limits, &generate.sampling);
  ReadLengths(fields, &generate);
  fields.StringOrStrings("stop", limits.max_stop_strings, &generate.stop);
  fields.Ints("stop_token_ids", limits.max_stop_token_ids, &generate.stop_token_ids);
  fields.Bool("include_stop_str_in_output", &generate.include_stop_str_in_output);
  fields.Bool("ignore_eos", &generate.ignore_eos);
  fields.Bool("skip_special_tokens", &generate.skip_special_tokens);
  if (fields.Has("add_special_tokens")) {
    bool add = false;
    fields.Bool("add_special_tokens", &add);
    generate.add_special_tokens = add;
  }
  fields.String("cache_salt", limits.max_cache_salt_bytes, &generate.cache_salt);
  fields.Bool("return_token_ids", &request->return_token_ids);
  fields.Bool("echo", &request->echo);
  ReadStream(fields, request);
  ReadLogprobs(fields, "prompt_logprobs", limits, &request->prompt_logprobs);
  generate.prompt_logprobs = request->prompt_logprobs;
  if (request->prompt_logprobs >= 0 && request->stream) {
    fields.Fail(InvalidArgument(
        "prompt_logprobs is not available with stream; use echo with logprobs", "prompt_logprobs"));
  }
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

Result<OpenAiRequest> ParseCompletionRequest(std::string_view body, const OpenAiContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  OpenAiRequest request;
  GenerateRequest& generate = request.generate;
  ReadCommon(fields, context, &request);
  if (context.strict) RefuseUnknown(fields, kCompletionFields);
  ReadTextPrompts(fields, *context.limits, &generate.prompts);
  ReadLogprobs(fields, "logprobs", *context.limits, &generate.sampling.num_logprobs);
  request.logprobs = generate.sampling.num_logprobs >= 0;
  generate.max_tokens_default = 16;  // the API's own default for this route
  if (request.echo) {
    generate.want_prompt_text = true;
    generate.prompt_logprobs = std::max(generate.prompt_logprobs, generate.sampling.num_logprobs);
    // An echo alone still needs a pass over the prompt, and the engine runs one without output only
    // to score the prompt.
    if (generate.max_tokens == 0) generate.prompt_logprobs = std::max(generate.prompt_logprobs, 0);
  }
  if (!fields.status().ok()) return fields.status();
  generate.holds = Holds(request);
  return request;
}

Result<OpenAiRequest> ParseChatRequest(std::string_view body, const OpenAiContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  OpenAiRequest request;
  request.chat = true;
  ReadCommon(fields, context, &request);
  if (context.strict) RefuseUnknown(fields, kChatFields);
  request.generate.prompts.emplace_back(ReadChatPrompt(fields, /*add_generation_prompt=*/true));
  fields.Bool("logprobs", &request.logprobs);
  int top_logprobs = 0;
  ReadLogprobs(fields, "top_logprobs", *context.limits, &top_logprobs);
  if (top_logprobs > 0 && !request.logprobs) {
    fields.Fail(InvalidArgument("top_logprobs is allowed only with logprobs", "top_logprobs"));
  }
  if (request.logprobs) request.generate.sampling.num_logprobs = top_logprobs;
  if (request.echo) fields.Fail(Unsupported("echo", " for chat"));
  if (!fields.status().ok()) return fields.status();
  request.generate.holds = Holds(request);
  return request;
}

Result<TokenizeRequest> ParseTokenizeRequest(std::string_view body, const OpenAiContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  TokenizeRequest request;
  fields.String("model", kMaxTextBytes, &request.model);
  fields.Bool("return_token_strs", &request.return_token_strs);
  if (fields.Has("messages")) {
    request.prompt = ReadChatPrompt(fields, /*add_generation_prompt=*/true);
    request.add_special_tokens = false;
  } else {
    std::string text;
    if (!fields.Has("prompt")) fields.Fail(InvalidArgument("prompt is missing", "prompt"));
    fields.String("prompt", kMaxTextBytes, &text);
    request.prompt = std::move(text);
  }
  fields.Bool("add_special_tokens", &request.add_special_tokens);
  constexpr std::string_view kKnown[] = {"prompt", "messages", "return_token_strs",
                                         "add_generation_prompt", "chat_template_kwargs"};
  if (context.strict) RefuseUnknown(fields, kKnown);
  if (!fields.status().ok()) return fields.status();
  return request;
}

Result<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body,
                                                 const OpenAiContext& context) {
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
