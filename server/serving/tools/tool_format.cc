// SPDX-License-Identifier: Apache-2.0
#include "server/serving/tools/tool_format.h"

namespace diffserve {
namespace {

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
};

constexpr ReasoningFormat kReasoningFormats[] = {
    {.name = "deepseek_r1", .begin = "<think>", .end = "</think>"},
    {.name = "qwen3", .begin = "<think>", .end = "</think>"},
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

bool OpensReasoning(const ReasoningFormat* format, std::string_view prompt) {
  if (format == nullptr) return false;
  const size_t last = prompt.find_last_not_of(" \t\n\r");
  return last != prompt.npos && prompt.substr(0, last + 1).ends_with(format->begin);
}

const ToolFormat* FindToolFormat(std::string_view name) { return Find(ToolFormats(), name); }

const ReasoningFormat* FindReasoningFormat(std::string_view name) {
  return Find(ReasoningFormats(), name);
}

}  // namespace diffserve
