// SPDX-License-Identifier: Apache-2.0
#include "server/api/anthropic/request.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/api/anthropic/input.h"
#include "server/api/fields/chat_fields.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/fields/tool_fields.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

std::vector<Tool> ReadTools(JsonFields& fields) {
  std::vector<Tool> tools;
  std::vector<JsonFields> entries = fields.Objects("tools", kMaxTools);
  for (size_t i = 0; i < entries.size() && fields.status().ok(); ++i) {
    JsonFields& entry = entries[i];
    const std::string path = "tools[" + std::to_string(i) + "]";
    if (IsToolOfOthers(entry, "custom")) continue;
    ReadMessagesName(entry, "name", path);
    if (!entry.Has("input_schema") && entry.status().ok())
      entry.Fail(Missing(path + ".input_schema"));
    entry.Object("input_schema");
    Tool tool = ReadFunction(entry, "input_schema", path);
    entry.Fail(AddTool(std::move(tool), path + ".name", &tools));
    fields.Fail(entry.status());
  }
  return tools;
}

ToolChoice ReadToolChoice(JsonFields& fields, bool any_tools) {
  using Kind = ToolChoice::Kind;
  ToolChoice read;
  read.kind = any_tools ? Kind::kAuto : Kind::kNone;
  for (JsonFields& choice : fields.Object("tool_choice")) {
    std::string type;
    choice.String("type", kMaxNameBytes, &type);
    if (type == "none") {
      read.kind = Kind::kNone;
    } else if (type == "any") {
      read.kind = Kind::kRequired;
    } else if (type == "tool") {
      read.kind = Kind::kNamed;
      read.name = ReadMessagesName(choice, "name", "tool_choice");
    } else if (type != "auto") {
      choice.Fail(NotOneOf("tool_choice.type", type, "auto, any, tool, none"));
    }
    bool alone = false;
    choice.Bool("disable_parallel_tool_use", &alone);
    read.parallel = !alone;
    fields.Fail(choice.status());
  }
  return read;
}

void ReadThinking(JsonFields& fields, int max_tokens, AnswerRequest* request) {
  auto& conversation = std::get<Conversation>(request->generate.prompts.front());
  for (JsonFields& thinking : fields.Object("thinking")) {
    std::string type;
    thinking.String("type", kMaxNameBytes, &type);
    if (type == "enabled") {
      int budget = -1;
      if (!thinking.Has("budget_tokens")) thinking.Fail(Missing("thinking.budget_tokens"));
      thinking.Count("budget_tokens", &budget);
      const bool fits = budget < max_tokens || max_tokens == 0;
      if (thinking.status().ok() && (budget < 1 || !fits)) {
        thinking.Fail(NotAllowed("thinking.budget_tokens is " + std::to_string(budget),
                                 "at least 1, less than max_tokens", "thinking.budget_tokens"));
      }
      request->generate.max_reasoning_tokens = budget;
    } else if (type != "disabled" && type != "adaptive" && type != "between_tools") {
      thinking.Fail(NotOneOf("thinking.type", type, "enabled, disabled, adaptive, between_tools"));
    }
    conversation.enable_thinking = type != "disabled";
    std::string display;
    thinking.String("display", kMaxNameBytes, &display);
    request->include_reasoning = display != "omitted";
    fields.Fail(thinking.status());
  }
}

// `param`: the schema's path.
void ReadFormat(JsonFields& holder, const char* name, const char* param,
                GenerateRequest* generate) {
  const std::string path(param, std::string_view(param).rfind('.'));
  for (JsonFields& format : holder.Object(name)) {
    std::string type;
    format.String("type", kMaxNameBytes, &type);
    if (type != "json_schema")
      format.Fail(Unsupported(path + ".type", " other than json_schema"));
    else if (format.Object("schema").empty())
      format.Fail(Missing(param));
    holder.Fail(format.status());
    generate->grammar = GrammarSpec{GrammarSpec::Kind::kJsonSchema, format.JsonText("schema"),
                                    param};
  }
}

void ReadOutput(JsonFields& fields, AnswerRequest* request) {
  auto& conversation = std::get<Conversation>(request->generate.prompts.front());
  ReadFormat(fields, "output_format", "output_format.schema", &request->generate);
  for (JsonFields& config : fields.Object("output_config")) {
    if (config.Has("format") && fields.Has("output_format"))
      config.Fail(NotBoth("output_config.format", "output_format"));
    ReadFormat(config, "format", "output_config.format.schema", &request->generate);
    config.String("effort", kMaxNameBytes, &conversation.reasoning_effort);
    fields.Fail(config.status());
  }
}

// `answers`: an answer is requested, not only the prompt's length.
Result<AnswerRequest> Read(std::string_view body, const ReadContext& context, bool answers) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  CheckMembers(fields, members::kMessagesTables, members::kChatTables);
  if (answers && !fields.Has("max_tokens")) fields.Fail(Missing("max_tokens"));
  AnswerRequest request;
  GenerateRequest& generate = request.generate;
  request.chat = true;
  generate.sampling = context.default_sampling;
  // Clients request as many tokens as the vendor's models allow, whatever this model's context is.
  generate.max_tokens_default = IntAtLeast(fields, "max_tokens", 1, 0);
  generate.prompts.emplace_back(
      ReadMessagesInput(fields, answers, context.options->template_roles));
  fields.String("model", kMaxTextBytes, &generate.model);
  fields.StringOrStrings("stop_sequences", kMaxStopStrings, &generate.stop);
  fields.Bool("stream", &request.stream);
  fields.String("cache_salt", kMaxCacheSaltBytes, &generate.cache_salt);
  ReadSampling(fields, &generate);
  auto& conversation = std::get<Conversation>(generate.prompts.front());
  conversation.tools = ReadTools(fields);
  const ToolChoice choice = ReadToolChoice(fields, !conversation.tools.empty());
  ReadThinking(fields, generate.max_tokens_default, &request);
  ReadOutput(fields, &request);
  if (fields.status().ok()) fields.Fail(PlanTools(choice, context.options->formats, &request));
  if (!fields.status().ok()) return fields.status();
  generate.holds = request.stream ? AnswerHolds::kEvents : AnswerHolds::kText;
  return request;
}

}  // namespace

Result<AnswerRequest> ParseMessagesRequest(std::string_view body, const ReadContext& context) {
  return Read(body, context, /*answers=*/true);
}

Result<AnswerRequest> ParseCountTokensRequest(std::string_view body, const ReadContext& context) {
  return Read(body, context, /*answers=*/false);
}

}  // namespace diffserve
