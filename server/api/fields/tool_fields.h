// SPDX-License-Identifier: Apache-2.0
// Members of a chat body, and of its messages, for tools and reasoning.
// Thread safety: as JsonFields.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/json/json.h"
#include "server/serving/answer/answer_plan.h"
#include "server/serving/answer/answer_request.h"
#include "server/serving/request/conversation.h"

namespace diffserve {

// Reads `tools`, `tool_choice`, `parallel_tool_calls`, `include_reasoning` and `reasoning_effort`
// for the request's single conversation, and plans the answer. Errors are in `fields`.
void ReadTools(JsonFields& fields, const AnswerFormats& formats, AnswerRequest* request);
// Sets what follows from the conversation's tools and `choice`: how the answer is constrained and
// how its text is read. With choice none the tools stay in the prompt. Call after all that may set
// generate.grammar. Error: `param` is tools or tool_choice.
Status PlanTools(const ToolChoice& choice, const AnswerFormats& formats, AnswerRequest* request);

// Reads `mode` and `tools` of a tool_choice of type allowed_tools: `in_chat` in its member
// `allowed_tools`, each name in a member `function`. Tools of others are skipped, as in `tools`.
void ReadAllowedTools(JsonFields& allowed, bool in_chat, const std::vector<Tool>& tools,
                      ToolChoice* choice);

// Reads only the entries of `tools`.
std::vector<Tool> ReadToolList(JsonFields& fields, const std::string& name);
// One tool's name, description and `strict`, and its schema, the member `schema`. `path`: that of
// `function`.
Tool ReadFunction(JsonFields& function, const char* schema, const std::string& path);
// Adds a tool whose name `name_path` names. Error: the name is there, or all are too many bytes.
Status AddTool(Tool tool, const std::string& name_path, std::vector<Tool>* tools);

// Whether a tool is of another type than those the client runs itself: tools of the API's vendor,
// or call formats that no model here knows. Such tools are skipped.
bool IsToolOfOthers(JsonFields& tool, std::string_view own);

// Reads `tool_calls` and `reasoning_content` (or `reasoning`) of an assistant's message.
void ReadAssistantMembers(JsonFields& message, const std::string& path, Message* read);
// Reads `tool_call_id` of a tool's message.
void ReadToolMembers(JsonFields& message, const std::string& path, Message* read);

}  // namespace diffserve
