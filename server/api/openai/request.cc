// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/request.h"

#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/api/fields/chat_fields.h"
#include "server/api/fields/members.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/fields/structured_fields.h"
#include "server/api/fields/tool_fields.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

// Members of which only the values that ask for nothing more are served.
void ReadOffChoices(JsonFields& fields) {
  std::string choice = "none";
  if (fields.IsString("function_call"))
    fields.String("function_call", kMaxNameBytes, &choice);
  else if (!fields.IsOff("function_call"))
    choice = "object";
  if (choice != "none" && choice != "auto")
    fields.Fail(Unsupported("function_call", " other than none or auto"));
  bool samples = true;
  fields.Bool("do_sample", &samples);
  if (!samples) fields.Fail(Unsupported("do_sample", ": use temperature 0"));
  std::vector<std::string> modalities;
  fields.StringOrStrings("modalities", 16, &modalities);
  for (const std::string& modality : modalities) {
    if (modality != "text") fields.Fail(Unsupported("modalities", " other than text"));
  }
}

// All members that both generating routes share.
void ReadCommon(JsonFields& fields, std::string_view body, const ReadContext& context,
                OpenAiRequest* request) {
  GenerateRequest& generate = request->generate;
  ReadOffChoices(fields);
  generate.sampling = context.default_sampling;
  fields.String("model", kMaxTextBytes, &generate.model);
  ReadGeneration(fields, &generate);
  fields.Int("priority", &generate.priority);
  if (fields.Has("add_special_tokens")) {
    bool add = false;
    fields.Bool("add_special_tokens", &add);
    generate.add_special_tokens = add;
  }
  fields.String("cache_salt", kMaxCacheSaltBytes, &generate.cache_salt);
  fields.Bool("return_token_ids", &request->return_token_ids);
  fields.Bool("return_tokens_as_token_ids", &request->tokens_as_ids);
  fields.Bool("timings_per_token", &request->timings);
  ReadStream(fields, request);
  ReadStructuredFields(fields, body, &generate);
  ReadLogprobs(fields, "prompt_logprobs", &request->prompt_logprobs);
  generate.sampling.prompt_logprobs = request->prompt_logprobs;
}

void ReadTextPrompts(JsonFields& fields, std::vector<Prompt>* prompts) {
  if (!fields.Has("prompt")) fields.Fail(Missing("prompt"));
  std::vector<JsonFields::TextOrIds> values;
  fields.Prompts("prompt", kMaxPrompts, &values);
  for (JsonFields::TextOrIds& value : values) {
    if (auto* text = std::get_if<std::string>(&value))
      prompts->emplace_back(std::move(*text));
    else
      prompts->emplace_back(std::get<std::vector<int32_t>>(std::move(value)));
  }
}

// {"type": "content", "content": text or text parts}. The parts are one text.
void ReadPrediction(JsonFields& fields, OpenAiRequest* request) {
  constexpr size_t kMaxParts = 1024;
  std::string& text = request->generate.prediction;
  for (JsonFields& prediction : fields.Object("prediction")) {
    request->predicts = true;
    std::string type;
    prediction.String("type", kMaxNameBytes, &type);
    if (type != "content") {
      prediction.Fail(NotOneOf("prediction.type", type, "content"));
    }
    if (!prediction.Has("content")) prediction.Fail(Missing("prediction.content"));
    if (prediction.IsString("content")) {
      prediction.String("content", kMaxTextBytes, &text);
    } else {
      for (JsonFields& part : prediction.Objects("content", kMaxParts)) {
        std::string part_type, part_text;
        part.String("type", kMaxNameBytes, &part_type);
        if (part_type != "text") part.Fail(NotOneOf(part.PathOf("type"), part_type, "text"));
        part.String("text", kMaxTextBytes, &part_text);
        prediction.Fail(part.status());
        text += part_text;
      }
    }
    fields.Fail(prediction.status());
  }
}

AnswerHolds Holds(const OpenAiRequest& request) {
  if (request.stream) return AnswerHolds::kEvents;
  return request.logprobs || request.return_token_ids ? AnswerHolds::kTokens : AnswerHolds::kText;
}

}  // namespace

Result<OpenAiRequest> ParseCompletionRequest(std::string_view body, const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  CheckMembers(fields, members::kCompletionTables);
  OpenAiRequest request;
  GenerateRequest& generate = request.generate;
  ReadCommon(fields, body, context, &request);
  fields.Bool("echo", &request.echo);
  ReadTextPrompts(fields, &generate.prompts);
  ReadLogprobs(fields, "logprobs", &generate.sampling.num_logprobs);
  request.logprobs = generate.sampling.num_logprobs >= 0;
  generate.max_tokens_default = 16;  // the API's own default for this route
  if (request.echo) {
    generate.want_prompt_text = true;
    generate.sampling.prompt_logprobs = std::max(generate.sampling.prompt_logprobs,
                                                 generate.sampling.num_logprobs);
    // An echo without output still needs a pass over the prompt. The engine runs such a request
    // only to score the prompt.
    if (generate.max_tokens == 0)
      generate.sampling.prompt_logprobs = std::max(generate.sampling.prompt_logprobs, 0);
  }
  if (!fields.status().ok()) return fields.status();
  generate.holds = Holds(request);
  return request;
}

Result<OpenAiRequest> ParseChatRequest(std::string_view body, const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  CheckMembers(fields, members::kChatTables);
  OpenAiRequest request;
  request.chat = true;
  ReadCommon(fields, body, context, &request);
  request.generate.prompts.emplace_back(ReadConversation(fields, /*add_generation_prompt=*/true));
  fields.Bool("logprobs", &request.logprobs);
  int top_logprobs = 0;
  ReadLogprobs(fields, "top_logprobs", &top_logprobs);
  if (top_logprobs > 0 && !request.logprobs) {
    fields.Fail(OnlyWith("top_logprobs", "logprobs"));
  }
  if (request.logprobs) request.generate.sampling.num_logprobs = top_logprobs;
  ReadTools(fields, context.options->formats, &request);
  ReadPrediction(fields, &request);
  if (!fields.status().ok()) return fields.status();
  request.generate.holds = Holds(request);
  return request;
}

Result<TokenizeRequest> ParseTokenizeRequest(std::string_view body, const ReadContext&) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  CheckMembers(fields, members::kTokenizeTables);
  TokenizeRequest request;
  fields.String("model", kMaxTextBytes, &request.model);
  fields.Bool("return_token_strs", &request.return_token_strs);
  if (fields.Has("messages")) {
    Conversation chat = ReadConversation(fields, /*add_generation_prompt=*/true);
    chat.tools = ReadToolList(fields, "tools");
    request.prompt = std::move(chat);
    request.add_special_tokens = false;
  } else {
    std::string text;
    if (!fields.Has("prompt")) fields.Fail(Missing("prompt"));
    fields.String("prompt", kMaxTextBytes, &text);
    request.prompt = std::move(text);
  }
  fields.Bool("add_special_tokens", &request.add_special_tokens);
  if (!fields.status().ok()) return fields.status();
  return request;
}

Result<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body, const ReadContext&) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  CheckMembers(fields, members::kDetokenizeTables);
  DetokenizeRequest request;
  fields.String("model", kMaxTextBytes, &request.model);
  if (!fields.Has("tokens")) fields.Fail(Missing("tokens"));
  fields.Ints("tokens", kMaxDetokenizeIds, &request.tokens);
  if (!fields.status().ok()) return fields.status();
  return request;
}

}  // namespace diffserve
