// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses/request.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "server/api/fields/chat_fields.h"
#include "server/api/fields/tool_fields.h"
#include "server/api/json/text_pieces.h"
#include "server/api/openai/chat_body.h"
#include "server/api/responses/encoder.h"
#include "server/api/responses/input.h"
#include "server/serving/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kMaxMetadata = 16;

const std::vector<std::string_view> kResponsesFields = {"model",
                                                        "input",
                                                        "instructions",
                                                        "max_output_tokens",
                                                        "stream",
                                                        "text",
                                                        "tools",
                                                        "tool_choice",
                                                        "store",
                                                        "previous_response_id",
                                                        "metadata",
                                                        "reasoning",
                                                        "parallel_tool_calls",
                                                        "truncation",
                                                        "include",
                                                        "stop",
                                                        "priority"};
// Members without effect, whatever their value.
const std::vector<std::string_view> kHarmlessResponsesFields = {
    "user",           "service_tier",           "safety_identifier",  "prompt_cache_key",
    "stream_options", "prompt_cache_retention", "context_management", "max_tool_calls",
    "client_metadata"};
const std::vector<std::string_view> kUnsupportedResponsesFields = {
    "background", "conversation", "prompt", "top_logprobs", "moderation", "suffix"};
// Values of `include`: parts of items that no answer here has, so nothing is omitted.
constexpr std::string_view kIncluded[] = {
    "reasoning.encrypted_content",   "web_search_call.action.sources",
    "web_search_call.results",       "file_search_call.results",
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "message.input_image.image_url"};
constexpr size_t kMaxIncluded = 32;

// {"type": "function", "name", "description", "parameters", "strict"}
void ReadTools(JsonFields& fields, size_t max_tools, ResponsesRequest* request, ChatBody* body) {
  std::vector<JsonFields> tools = fields.Objects("tools", max_tools);
  std::string list, echo;
  for (size_t i = 0; i < tools.size(); ++i) {
    JsonFields& tool = tools[i];
    const std::string path = "tools[" + std::to_string(i) + "]";
    if (IsToolOfOthers(tool, "function")) continue;
    std::string name, description;
    tool.String("name", kMaxNameBytes, &name);
    if (tool.status().ok() && name.empty())
      tool.Fail(InvalidArgument(path + ".name is missing or empty", path + ".name"));
    tool.String("description", kMaxTextBytes, &description);
    tool.Object("parameters");
    bool strict = false;
    tool.Bool("strict", &strict);
    fields.Fail(tool.status());
    const std::string parameters = tool.JsonText("parameters"), strictly = tool.JsonText("strict");
    list += (list.empty() ? "" : ",") + ChatTool(name, description, parameters, strictly);
    echo += (echo.empty() ? "" : ",") + ("{\"type\":\"function\",\"name\":" + JsonQuoted(name)) +
            ",\"description\":" + tool.JsonText("description") + ",\"parameters\":" + parameters +
            ",\"strict\":" + strictly + "}";
  }
  if (!list.empty()) body->Add("tools", "[" + list + "]");
  request->echo += ",\"tools\":[" + echo + "]";
}

void ReadToolChoice(JsonFields& fields, ResponsesRequest* request, ChatBody* body) {
  std::string choice = "auto", json;
  if (fields.IsOff("tool_choice")) {
    request->echo += ",\"tool_choice\":\"auto\"";
    return;
  }
  if (fields.IsString("tool_choice")) {
    fields.String("tool_choice", kMaxNameBytes, &choice);
    if (choice != "auto" && choice != "none" && choice != "required") {
      fields.Fail(InvalidArgument(
          "tool_choice must be auto, none, required or {\"type\": \"function\", \"name\"}",
          "tool_choice"));
    }
    json = JsonQuoted(choice);
  }
  for (JsonFields& named :
       fields.IsString("tool_choice") ? std::vector<JsonFields>() : fields.Object("tool_choice")) {
    std::string type, name;
    named.String("type", kMaxNameBytes, &type);
    if (named.status().ok() && type != "function")
      named.Fail(Unsupported("tool_choice.type", ": '" + type + "', only function is"));
    named.String("name", kMaxNameBytes, &name);
    if (named.status().ok() && name.empty())
      named.Fail(InvalidArgument("tool_choice.name is missing or empty", "tool_choice.name"));
    fields.Fail(named.status());
    json = "{\"type\":\"function\",\"function\":{\"name\":" + JsonQuoted(name) + "}}";
  }
  if (!json.empty()) body->Add("tool_choice", json);
  request->echo += ",\"tool_choice\":" + fields.JsonText("tool_choice");
}

void ReadText(JsonFields& fields, ResponsesRequest* request, ChatBody* body) {
  std::string echo = "{\"type\":\"text\"}";
  for (JsonFields& text : fields.Object("text")) {
    for (JsonFields& format : text.Object("format")) {
      std::string type, name = "answer";
      format.String("type", kMaxNameBytes, &type);
      echo = text.JsonText("format");
      if (type == "json_object") {
        body->Add("response_format", "{\"type\":\"json_object\"}");
      } else if (type == "json_schema") {
        format.String("name", kMaxNameBytes, &name);
        if (format.Object("schema").empty())
          format.Fail(InvalidArgument("text.format.schema is missing", "text.format.schema"));
        std::string schema = "{\"name\":" + JsonQuoted(name) +
                             ",\"schema\":" + format.JsonText("schema");
        if (format.Has("strict")) schema += ",\"strict\":" + format.JsonText("strict");
        body->Add("response_format", "{\"type\":\"json_schema\",\"json_schema\":" + schema + "}}");
      } else if (type != "text") {
        format.Fail(InvalidArgument("text.format.type must be text, json_object or json_schema",
                                    "text.format.type"));
      }
      text.Fail(format.status());
    }
    fields.Fail(text.status());
  }
  request->echo += ",\"text\":{\"format\":" + echo + "}";
}

void ReadReasoning(JsonFields& fields, ResponsesRequest* request, ChatBody* body) {
  std::string effort, summary = "auto";
  for (JsonFields& reasoning : fields.Object("reasoning")) {
    reasoning.String("effort", kMaxNameBytes, &effort);
    reasoning.String("summary", kMaxNameBytes, &summary);
    constexpr std::string_view kSummaries[] = {"auto", "concise", "detailed", "none"};
    if (reasoning.status().ok() && std::ranges::find(kSummaries, summary) == std::end(kSummaries)) {
      reasoning.Fail(InvalidArgument("reasoning.summary must be auto, concise, detailed or none",
                                     "reasoning.summary"));
    }
    fields.Fail(reasoning.status());
  }
  if (!effort.empty()) {
    std::string kwargs = "\"reasoning_effort\":" + JsonQuoted(effort);
    if (effort == "none") kwargs += ",\"enable_thinking\":false";
    body->Add("chat_template_kwargs", "{" + kwargs + "}");
  }
  request->echo += ",\"reasoning\":{\"effort\":" + (effort.empty() ? "null" : JsonQuoted(effort)) +
                   ",\"summary\":null}";
}

void ReadTruncation(JsonFields& fields, ResponsesRequest* request, ChatBody* body) {
  std::string truncation = "disabled";
  fields.String("truncation", kMaxNameBytes, &truncation);
  if (truncation == "auto")
    body->Add("truncate_prompt_tokens", "-1");
  else if (truncation != "disabled")
    fields.Fail(InvalidArgument("truncation must be auto or disabled", "truncation"));
  request->echo += ",\"truncation\":" + JsonQuoted(truncation);
}

// Refuses unsupported members, and with --strict unknown ones.
void CheckMembers(JsonFields& fields, const OpenAiContext& context) {
  for (const std::string_view name : kUnsupportedResponsesFields) {
    if (!fields.IsOff(name)) fields.Fail(Unsupported(name));
  }
  RefuseMembersBeyond(
      fields,
      {kResponsesFields, kHarmlessResponsesFields, kUnsupportedResponsesFields, SamplingMembers()},
      context.strict);
  std::vector<std::string> included;
  fields.StringOrStrings("include", kMaxIncluded, &included);
  for (const std::string& part : included) {
    if (std::ranges::find(kIncluded, part) == std::end(kIncluded))
      fields.Fail(Unsupported("include", ": '" + part.substr(0, 64) + "'"));
  }
}

void ReadSmallMembers(JsonFields& fields, ResponsesRequest* request, ChatBody* body) {
  IntAtLeast(fields, "max_output_tokens", 1, 0);
  if (fields.Has("max_output_tokens"))
    body->Add("max_completion_tokens", fields.JsonText("max_output_tokens"));
  fields.Bool("store", &request->store);
  fields.String("previous_response_id", kMaxNameBytes, &request->previous_response_id);
  std::string metadata = "{}";
  fields.Scalars("metadata", kMaxMetadata, {}, &metadata);
  bool parallel = true;
  fields.Bool("parallel_tool_calls", &parallel);
  if (!parallel) body->Add("parallel_tool_calls", "false");
  std::string user;
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key"})
    fields.String(name, 4 * kMaxNameBytes, &user);
  request->echo +=
      ",\"background\":false,\"max_output_tokens\":" + fields.JsonText("max_output_tokens") +
      ",\"max_tool_calls\":null" + ",\"metadata\":" + metadata +
      ",\"parallel_tool_calls\":" + (parallel ? "true" : "false") +
      ",\"previous_response_id\":" + fields.JsonText("previous_response_id") +
      ",\"prompt_cache_key\":" + fields.JsonText("prompt_cache_key") +
      ",\"safety_identifier\":" + fields.JsonText("safety_identifier") +
      ",\"service_tier\":\"default\",\"store\":" + (request->store ? "true" : "false") +
      ",\"top_logprobs\":0,\"user\":" + fields.JsonText("user");
}

}  // namespace

Result<ResponsesRequest> ParseResponsesRequest(std::string_view body, const OpenAiContext& context,
                                               const FindResponseItem& find) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  CheckMembers(fields, context);
  ResponsesRequest request;
  ChatBody chat;
  if (!fields.IsOff("instructions")) {
    std::string instructions;
    fields.String("instructions", kMaxTextBytes, &instructions);
    ChatMessages message;
    message.Say("system", {instructions});
    request.instructions = message.Take();
  }
  request.echo = "\"instructions\":" + fields.JsonText("instructions");
  ReadResponsesInput(fields, find, &request);
  for (const char* name : {"model", "stream", "stop", "priority"}) chat.Copy(fields, name);
  chat.CopySampling(fields);
  ReadSmallMembers(fields, &request, &chat);
  ReadTools(fields, context.limits->max_tools, &request, &chat);
  ReadToolChoice(fields, &request, &chat);
  ReadText(fields, &request, &chat);
  ReadReasoning(fields, &request, &chat);
  ReadTruncation(fields, &request, &chat);
  if (!fields.status().ok()) return fields.status();
  request.members = chat.Take();
  return request;
}

Status InResponsesNames(const Status& status) {
  constexpr std::pair<std::string_view, const char*> kNames[] = {
      {"messages", "input"},
      {"prompt", "input"},
      {"response_format", "text.format"},
      {"max_completion_tokens", "max_output_tokens"},
      {"truncate_prompt_tokens", "truncation"},
      {"chat_template_kwargs", "reasoning"},
  };
  for (const auto& [chat, here] : kNames) {
    if (!status.param().starts_with(chat)) continue;
    std::string message = status.message();
    if (message.starts_with(chat)) message = here + message.substr(chat.size());
    return Status(status.code(), message, here).WithRetryAfter(status.retry_after_s());
  }
  return status;
}

Result<ResponsesChat> ChatOf(const ResponsesRequest& request, const StoredResponse* previous,
                             const OpenAiContext& context) {
  ChatMessages conversation;
  if (previous != nullptr) {
    conversation.Append(previous->input->messages);
    for (const ResponseItem& item : previous->object->items) {
      if (item.kind == AnswerPart::Kind::kContent)
        conversation.Say("assistant", {item.text});
      else if (item.kind == AnswerPart::Kind::kToolCall)
        conversation.Call(item.call_id, item.name, item.text);
    }
  }
  conversation.Append(request.messages);
  ResponsesChat chat;
  auto input = std::make_shared<ResponseInput>(request.input);
  input->messages = conversation.Take();
  ChatMessages all;
  all.Append(request.instructions);
  all.Append(input->messages);
  chat.input = std::move(input);
  const std::string members = request.members.substr(1, request.members.size() - 2);
  Result<OpenAiRequest> parsed = ParseChatRequest(
      "{\"messages\":[" + all.Take() + "]" + (members.empty() ? "" : ",") + members + "}",
      FittingRoles(context));
  if (!parsed.ok()) return InResponsesNames(parsed.status());
  chat.request = std::move(parsed).value();
  chat.request.generate.max_tokens_name = "max_output_tokens";
  chat.request.generate.holds = AnswerHolds::kText;  // the last event repeats all of a stream
  std::string echo = request.echo + ",\"temperature\":";
  AppendJsonNumber(chat.request.generate.sampling.temperature, &echo);
  echo += ",\"top_p\":";
  AppendJsonNumber(chat.request.generate.sampling.top_p, &echo);
  chat.echo = std::make_shared<const std::string>(std::move(echo));
  return chat;
}

}  // namespace diffserve
