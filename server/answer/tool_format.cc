#include "server/answer/tool_format.h"

namespace diffserve {
namespace {

constexpr ToolFormat kToolFormats[] = {
    // Nous Hermes 2 and 3, Qwen 2.5 and 3.
    {.name = "hermes", .begin = "<tool_call>", .end = "</tool_call>"},
    // Llama 3.1 and later: {"name": ..., "parameters": {...}}.
    {.name = "llama3_json",
     .begin = "",
     .end = "",
     .prefix = "<|python_tag|>",
     .special_markers = true},
    {.name = "mistral",
     .syntax = ToolCallSyntax::kJsonList,
     .begin = "[TOOL_CALLS]",
     .end = "",
     .special_markers = true,
     .short_ids = true},
    // Qwen 3 Coder.
    {.name = "qwen_xml",
     .syntax = ToolCallSyntax::kXml,
     .begin = "<tool_call>",
     .end = "</tool_call>"},
    // Motif 3: its markers are tokens of their own.
    {.name = "motif", .begin = "<tool_call>", .end = "</tool_call>", .special_markers = true},
};

constexpr ReasoningFormat kReasoningFormats[] = {
    // The template ends with the opening marker.
    {.name = "deepseek_r1", .begin = "<think>", .end = "</think>", .opened_by_template = true},
    // The model writes both.
    {.name = "qwen3", .begin = "<think>", .end = "</think>"},
    {.name = "motif",
     .begin = "<think>",
     .end = "</think>",
     .opened_by_template = true,
     .special_markers = true},
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

const ToolFormat* FindToolFormat(std::string_view name) { return Find(ToolFormats(), name); }

const ReasoningFormat* FindReasoningFormat(std::string_view name) {
  return Find(ReasoningFormats(), name);
}

}  // namespace diffserve
