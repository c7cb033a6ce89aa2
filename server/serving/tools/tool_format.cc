// SPDX-License-Identifier: Apache-2.0
#include "server/serving/tools/tool_format.h"

namespace diffserve {
namespace {

constexpr std::string_view kSpaces = " \t\n\r";

constexpr ToolFormat kToolFormats[] = {
    // Nous Hermes 2 and 3, Qwen 2.5 and 3.
    {.name = "hermes", .begin = "<tool_call>", .end = "</tool_call>"},
    // Llama 3.1 and later.
    {.name = "llama3_json",
     .begin = "<|python_tag|>",
     .bare_begin = "{",
     .bare_at_start_only = true},
    // The list up to the tokenizer's version 7, the name before its arguments from version 11 on.
    {.name = "mistral",
     .syntax = ToolCallSyntax::kNamedJson,
     .begin = "[TOOL_CALLS]",
     .short_ids = true},
    // Qwen 3 Coder, Nemotron 3.
    {.name = "qwen_xml",
     .syntax = ToolCallSyntax::kXml,
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .bare_begin = "<function="},
    // Motif 3.
    {.name = "motif", .begin = "<tool_call>", .end = "</tool_call>"},
    // A model that was trained for no tools.
    {.name = "generic", .begin = "<tool_call>", .end = "</tool_call>", .in_messages = true},
};

// Those that vLLM has under the same name begin as there.
constexpr ReasoningFormat kReasoningFormats[] = {
    {.name = "think", .begin = "<think>", .end = "</think>"},
    {.name = "deepseek_r1",
     .begin = "<think>",
     .end = "</think>",
     .unmarked = ReasoningFormat::Unmarked::kReasoning},
    {.name = "qwen3",
     .begin = "<think>",
     .end = "</think>",
     .unmarked = ReasoningFormat::Unmarked::kReasoningUnlessOff},
    {.name = "motif", .begin = "<think>", .end = "</think>"},
};

template <typename Format>
const Format* Find(std::span<const Format> formats, std::string_view name) {
  for (const Format& format : formats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

template <typename Format>
std::string Names(std::span<const Format> formats) {
  std::string names;
  for (const Format& format : formats) {
    if (!names.empty()) names += ", ";
    names += format.name;
  }
  return names;
}

}  // namespace

std::span<const ToolFormat> ToolFormats() { return kToolFormats; }
std::span<const ReasoningFormat> ReasoningFormats() { return kReasoningFormats; }

std::string ToolFormatNames() { return Names(ToolFormats()); }
std::string ReasoningFormatNames() { return Names(ReasoningFormats()); }

ReasoningStart StartOfAnswer(const ReasoningFormat* format, const PromptEnd& end) {
  if (format == nullptr) return ReasoningStart::kClosed;
  const size_t opened = end.continued.rfind(format->begin) + 1;  // 0: not there
  const size_t closed = end.continued.rfind(format->end) + 1;
  if (opened != closed) return opened > closed ? ReasoningStart::kOpen : ReasoningStart::kClosed;
  if (end.continued.find_first_not_of(kSpaces) != end.continued.npos)
    return ReasoningStart::kClosed;
  const std::string_view prompt = end.prompt.substr(0, end.prompt.find_last_not_of(kSpaces) + 1);
  if (prompt.ends_with(format->begin)) return ReasoningStart::kOpen;
  if (prompt.ends_with(format->end)) return ReasoningStart::kClosed;
  switch (format->unmarked) {
    case ReasoningFormat::Unmarked::kMayOpen:
      break;
    case ReasoningFormat::Unmarked::kReasoning:
      return ReasoningStart::kOpen;
    case ReasoningFormat::Unmarked::kReasoningUnlessOff:
      return end.thinking_off ? ReasoningStart::kClosed : ReasoningStart::kOpen;
  }
  return ReasoningStart::kMayOpen;
}

const ToolFormat* FindToolFormat(std::string_view name) { return Find(ToolFormats(), name); }

const ReasoningFormat* FindReasoningFormat(std::string_view name) {
  return Find(ReasoningFormats(), name);
}

}  // namespace diffserve
