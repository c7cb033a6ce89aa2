// SPDX-License-Identifier: Apache-2.0
// Members of a chat body, and of its messages, for tools and reasoning.
// Thread safety: as JsonFields.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/json/json.h"
#include "server/api/openai/request.h"
#include "server/serving/tools/tool_plan.h"

namespace diffserve {

// The members that ReadTools reads; routes without tools refuse them.
inline constexpr std::string_view kToolFields[] = {"tools", "tool_choice", "reasoning_effort"};

// Reads `tools`, `tool_choice`, `parallel_tool_calls`, `include_reasoning` and `reasoning_effort`
// for the request's single conversation, and sets what follows from them in `request`. With
// tool_choice none the tools stay in the prompt. Call after all that may set generate.grammar.
// Errors are in `fields`.
void ReadTools(JsonFields& fields, const FrontendOptions& limits, OpenAiRequest* request);

// Reads only the entries of `tools`.
std::vector<Tool> ReadToolList(JsonFields& fields, const FrontendOptions& limits);
// One tool's members; those of `tool` are {"type": "function", "function": {...}}.
Tool ReadTool(JsonFields& tool, const std::string& path, const FrontendOptions& limits);

// Whether a tool is of another type than those the client runs itself: tools of the API's vendor,
// or call formats that no model here knows. Such tools are skipped.
bool IsToolOfOthers(JsonFields& tool, std::string_view own);

// The arguments of a call in a conversation, as the text of an object, because templates iterate
// over them. Empty text is {}. Text that is not an object, such as that of a call that was cut off,
// becomes the member INVALID_JSON, as in Anthropic's guide and pydantic-ai.
std::string CallArguments(const std::string& text);
// The same for a call whose argument is plain text.
std::string CustomArguments(std::string_view text);

// Reads the members of an assistant's message as templates expect them: `tool_calls` with the
// arguments as an object, and `reasoning_content` (or `reasoning`); ,"name":value for each.
std::string ReadAssistantMembers(JsonFields& message, const std::string& path);
// Reads the members of a tool's message: `tool_call_id`.
std::string ReadToolMembers(JsonFields& message, const std::string& path);

}  // namespace diffserve
