// The members of a chat body that are about tools and reasoning, and those of its messages.
// Thread safety: as of JsonFields.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/answer/tool_plan.h"
#include "server/openai/json.h"
#include "server/openai/request.h"

namespace diffserve {

// What ReadTools reads of a body, which the routes without tools refuse.
inline constexpr std::string_view kToolFields[] = {"tools", "tool_choice", "reasoning_effort"};

// `tools`, `tool_choice`, `parallel_tool_calls`, `include_reasoning` and `reasoning_effort`, for
// the request's one conversation; what follows from them is set in `request`. With tool_choice none
// the tools stay in the prompt. Comes after all that may set generate.grammar. Errors are in
// `fields`.
void ReadTools(JsonFields& fields, const FrontendOptions& limits, OpenAiRequest* request);

// The entries of `tools` alone.
std::vector<Tool> ReadToolList(JsonFields& fields, const FrontendOptions& limits);
// One tool's members; those of `tool` are {"type": "function", "function": {...}}.
Tool ReadTool(JsonFields& tool, const std::string& path, const FrontendOptions& limits);

// Whether a tool's type is not the one that the client runs itself: what the API's vendor would
// run, or a form of calls that no model here is shown. Such an offer is passed over.
bool IsToolOfOthers(JsonFields& tool, std::string_view own);

// The arguments of a call in a conversation, as the text of an object, which is what templates go
// through. Text that says nothing is {}; text that is no object, such as that of a call which was
// cut off, is the member INVALID_JSON, as Anthropic's guide and pydantic-ai have it.
std::string CallArguments(const std::string& text);
// The same of a call whose argument is plain text.
std::string CustomArguments(std::string_view text);

// Of an assistant's message: `tool_calls` with the arguments as an object, and
// `reasoning_content` (or `reasoning`), as templates expect them: ,"name":value for each.
std::string ReadAssistantMembers(JsonFields& message, const std::string& path);
// Of a tool's message: `tool_call_id`.
std::string ReadToolMembers(JsonFields& message, const std::string& path);

}  // namespace diffserve
