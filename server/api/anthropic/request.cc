// SPDX-License-Identifier: Apache-2.0
#include "server/api/anthropic/request.h"

#include <string>
#include <utility>
#include <vector>

#include "server/api/anthropic/input.h"
#include "server/api/fields/chat_fields.h"
#include "server/api/fields/tool_fields.h"
#include "server/api/openai/chat_body.h"
#include "server/serving/request_checks.h"

namespace diffserve {
namespace {

const std::vector<std::string_view> kMessagesFields = {
    "model", "messages",    "system",   "max_tokens",    "stop_sequences", "stream",
    "tools", "tool_choice", "thinking", "output_config", "output_format"};
// Members without effect, whatever their value.
const std::vector<std::string_view> kHarmlessMessagesFields = {
    "metadata", "service_tier", "cache_control", "inference_geo",
    "betas",    "speed",        "mcp_servers",   "context_management"};
const std::vector<std::string_view> kUnsupportedMessagesFields = {"container", "prompt"};

void ReadTools(JsonFields& fields, size_t max_tools, ChatBody* body) {
  std::vector<JsonFields> tools = fields.Objects("tools", max_tools);
  std::string list;
  for (size_t i = 0; i < tools.size(); ++i) {
    JsonFields& tool = tools[i];
    const std::string path = "tools[" + std::to_string(i) + "]";
    if (IsToolOfOthers(tool, "custom")) continue;
    std::string description;
    const std::string name = ReadMessagesName(tool, "name", path);
    tool.String("description", kMaxTextBytes, &description);
    if (tool.Object("input_schema").empty() && tool.status().ok())
      tool.Fail(InvalidArgument(path + ".input_schema is missing", path + ".input_schema"));
    fields.Fail(tool.status());
    list += (list.empty() ? "" : ",") +
            ChatTool(name, description, tool.JsonText("input_schema"), tool.JsonText("strict"));
  }
  if (!list.empty()) body->Add("tools", "[" + list + "]");
}

void ReadToolChoice(JsonFields& fields, ChatBody* body) {
  for (JsonFields& choice : fields.Object("tool_choice")) {
    std::string type;
    choice.String("type", kMaxNameBytes, &type);
    if (type == "auto" || type == "none") {
      body->Add("tool_choice", JsonQuoted(type));
    } else if (type == "any") {
      body->Add("tool_choice", "\"required\"");
    } else if (type == "tool") {
      body->Add("tool_choice", "{\"type\":\"function\",\"function\":{\"name\":" +
                                   JsonQuoted(ReadMessagesName(choice, "name", "tool_choice")) +
                                   "}}");
    } else {
      choice.Fail(
          InvalidArgument("tool_choice.type must be auto, any, tool or none", "tool_choice.type"));
    }
    bool alone = false;
    choice.Bool("disable_parallel_tool_use", &alone);
    if (alone) body->Add("parallel_tool_calls", "false");
    fields.Fail(choice.status());
  }
}

// The maximum number of reasoning tokens; -1: no limit. `max_tokens`: the answer's; 0: no answer is
// requested.
int ReadThinking(JsonFields& fields, int max_tokens, std::string* kwargs, ChatBody* body) {
  int budget = -1;
  for (JsonFields& thinking : fields.Object("thinking")) {
    std::string type;
    thinking.String("type", kMaxNameBytes, &type);
    if (type == "enabled") {
      if (!thinking.Has("budget_tokens"))
        thinking.Fail(
            InvalidArgument("thinking.budget_tokens is missing", "thinking.budget_tokens"));
      thinking.Count("budget_tokens", &budget);
      const bool fits = budget < max_tokens || max_tokens == 0;
      if (thinking.status().ok() && (budget < 1 || !fits)) {
        thinking.Fail(InvalidArgument("thinking.budget_tokens is " + std::to_string(budget) +
                                          "; it must be at least 1 and less than max_tokens",
                                      "thinking.budget_tokens"));
      }
    } else if (type != "disabled" && type != "adaptive") {
      thinking.Fail(
          InvalidArgument("thinking.type must be enabled, disabled or adaptive", "thinking.type"));
    }
    *kwargs = "\"enable_thinking\":" + std::string(type == "disabled" ? "false" : "true");
    std::string display;
    thinking.String("display", kMaxNameBytes, &display);
    if (display == "omitted") body->Add("include_reasoning", "false");
    fields.Fail(thinking.status());
  }
  return budget;
}

void ReadFormat(JsonFields& holder, const char* name, const std::string& path, ChatBody* body) {
  for (JsonFields& format : holder.Object(name)) {
    std::string type;
    format.String("type", kMaxNameBytes, &type);
    if (type != "json_schema")
      format.Fail(Unsupported(path + ".type", " other than json_schema"));
    else if (format.Object("schema").empty())
      format.Fail(InvalidArgument(path + ".schema is missing", path + ".schema"));
    holder.Fail(format.status());
    body->Add("response_format",
              "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"answer\",\"strict\":true,"
              "\"schema\":" +
                  format.JsonText("schema") + "}}");
  }
}

void ReadOutput(JsonFields& fields, std::string* kwargs, ChatBody* body) {
  ReadFormat(fields, "output_format", "output_format", body);
  for (JsonFields& config : fields.Object("output_config")) {
    if (config.Has("format") && fields.Has("output_format"))
      config.Fail(
          InvalidArgument("output_format and output_config.format mean the same; use one of them",
                          "output_format"));
    ReadFormat(config, "format", "output_config.format", body);
    std::string effort;
    config.String("effort", kMaxNameBytes, &effort);
    if (!effort.empty())
      *kwargs += (kwargs->empty() ? "" : ",") + ("\"reasoning_effort\":" + JsonQuoted(effort));
    fields.Fail(config.status());
  }
}

}  // namespace

Result<MessagesChat> ChatOfMessages(std::string_view text, const OpenAiContext& context,
                                    bool answers) {
  Result<JsonFields> parsed = JsonFields::Parse(text);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  for (const std::string_view name : kUnsupportedMessagesFields) {
    if (!fields.IsOff(name)) fields.Fail(Unsupported(name));
  }
  RefuseMembersBeyond(
      fields,
      {kMessagesFields, kHarmlessMessagesFields, kUnsupportedMessagesFields, SamplingMembers()},
      context.strict);
  if (answers && !fields.Has("max_tokens"))
    fields.Fail(InvalidArgument("max_tokens is missing", "max_tokens"));
  const int max_tokens = IntAtLeast(fields, "max_tokens", 1, 0);
  ChatBody body;
  ReadMessagesInput(fields, answers, &body);
  std::vector<std::string> stops;
  fields.StringOrStrings("stop_sequences", context.limits->max_stop_strings, &stops);
  if (!stops.empty()) body.Add("stop", fields.JsonText("stop_sequences"));
  for (const char* name : {"model", "max_tokens", "stream"}) body.Copy(fields, name);
  body.CopySampling(fields);
  ReadTools(fields, context.limits->max_tools, &body);
  ReadToolChoice(fields, &body);
  std::string kwargs;
  const int max_reasoning_tokens = ReadThinking(fields, max_tokens, &kwargs, &body);
  ReadOutput(fields, &kwargs, &body);
  if (!kwargs.empty()) body.Add("chat_template_kwargs", "{" + kwargs + "}");
  if (!fields.status().ok()) return fields.status();
  return MessagesChat{body.Take(), max_reasoning_tokens};
}

namespace {

Result<OpenAiRequest> Parse(std::string_view body, const OpenAiContext& context, bool answers) {
  const Result<MessagesChat> chat = ChatOfMessages(body, context, answers);
  if (!chat.ok()) return chat.status();
  Result<OpenAiRequest> request = ParseChatRequest(chat->body, FittingRoles(context));
  if (!request.ok()) return request;
  GenerateRequest& generate = request->generate;
  if (chat->max_reasoning_tokens >= 0) generate.max_reasoning_tokens = chat->max_reasoning_tokens;
  // Clients request as many tokens as the vendor's models allow, whatever this model's context is.
  generate.max_tokens_default = std::exchange(generate.max_tokens, {}).value_or(0);
  return request;
}

}  // namespace

Result<OpenAiRequest> ParseMessagesRequest(std::string_view body, const OpenAiContext& context) {
  return Parse(body, context, /*answers=*/true);
}

Result<OpenAiRequest> ParseCountTokensRequest(std::string_view body, const OpenAiContext& context) {
  return Parse(body, context, /*answers=*/false);
}

}  // namespace diffserve
