#include "server/openai/request.h"

#include <algorithm>
#include <span>
#include <utility>

#include "server/openai/chat_fields.h"
#include "server/openai/sampling_fields.h"
#include "server/openai/structured_fields.h"
#include "server/openai/tool_fields.h"
#include "server/request_checks.h"

namespace diffserve {
namespace {

using Names = std::span<const std::string_view>;

// What we act on beside kGenerationFields.
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
constexpr std::string_view kUnsupportedFields[] = {"functions",
                                                   "audio",
                                                   "prediction",
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
                                                   "continue_final_message",
                                                   "return_token_offsets",
                                                   "return_prompt_text",
                                                   "return_assistant_tokens_mask",
                                                   "return_hidden_states",
                                                   "early_stopping"};
// Likewise, with values that mean "off".
constexpr std::string_view kConditionalFields[] = {"function_call", "modalities"};

bool Contains(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What serves the same purpose, for an error message.
std::string_view InsteadOf(std::string_view name) {
  if (name == "suffix") return ": text is only continued; put what follows into the prompt";
  if (name == "use_beam_search" || name == "early_stopping")
    return ": continuations are drawn; ask for n with logprobs, and choose";
  return "";
}

void RefuseUnsupported(JsonFields& fields) {
  for (const std::string_view name : kUnsupportedFields) {
    if (!fields.IsOff(name)) fields.Fail(Unsupported(name, InsteadOf(name)));
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

// Of a route that has none.
void RefuseTools(JsonFields& fields) {
  for (const std::string_view name : kToolFields) {
    if (!fields.IsOff(name)) fields.Fail(Unsupported(name, " for completions"));
  }
}

void RefuseUnknown(JsonFields& fields, Names known) {
  for (const std::string& name : fields.Names()) {
    if (Contains(known, name) || Contains(kGenerateFields, name) ||
        Contains(kGenerationFields, name) || Contains(kHarmlessFields, name) ||
        Contains(kUnsupportedFields, name) || Contains(kConditionalFields, name) ||
        Contains(StructuredFieldNames(), name) || Contains(kToolFields, name)) {
      continue;
    }
    const std::string shown = name.substr(0, 64);
    fields.Fail(
        InvalidArgument("unknown member '" + shown + "' (the server runs with --strict)", shown));
  }
}

// All members that both generating routes share.
void ReadCommon(JsonFields& fields, std::string_view body, const OpenAiContext& context,
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

Result<OpenAiRequest> ParseCompletionRequest(std::string_view body, const OpenAiContext& context) {
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
  ReadCommon(fields, body, context, &request);
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
  ReadTools(fields, *context.limits, &request);
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
