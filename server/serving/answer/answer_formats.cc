// SPDX-License-Identifier: Apache-2.0
#include "server/serving/answer/answer_formats.h"

#include <algorithm>

#include "server/serving/request/template_roles.h"

namespace diffserve {
namespace {

constexpr std::string_view kAuto = "auto";

// Whether a marker is, or begins with, a special token.
bool IsSpecial(std::string_view marker, const Tokenizer& tokenizer) {
  const Result<std::vector<int32_t>> ids = tokenizer.Encode(marker, false);
  return ids.ok() && std::ranges::any_of(*ids, [&](int32_t id) { return tokenizer.IsSpecial(id); });
}

std::string_view SourceOf(const std::string& flag) {
  return flag == kAuto ? "chat_template" : "command_line";
}

}  // namespace

// Other families' formats share some of these markers; their own markers identify them.
const ToolFormat* ToolFormatOf(std::string_view templates) {
  const auto has = [templates](std::string_view text) {
    return templates.find(text) != templates.npos;
  };
  if (has("[TOOL_CALLS]")) return FindToolFormat("mistral");
  const bool other_xml = has("<arg_key>") || has("<tool_sep>") || has("<param name=");
  if (has("<tool_call>") && !other_xml) {
    if (has("<function=") && has("<parameter=")) return FindToolFormat("qwen_xml");
    if (!has("<function=")) return FindToolFormat("hermes");
  }
  const bool llama = has("<|python_tag|>") || has("<|start_header_id|>ipython<|end_header_id|>");
  return llama && !has("<function=") ? FindToolFormat("llama3_json") : nullptr;
}

const ReasoningFormat* ReasoningFormatOf(std::string_view templates) {
  for (const ReasoningFormat& format : ReasoningFormats()) {
    for (const std::string_view marker : {format.begin, format.end}) {
      if (templates.find(marker) != templates.npos) return &format;
    }
  }
  return nullptr;
}

AnswerFormats ChooseFormats(const AnswerParserNames& names, const ChatTemplate* chat_template,
                            const Tokenizer& tokenizer) {
  const std::string templates = chat_template == nullptr ? "" : chat_template->Sources();
  AnswerFormats formats;
  formats.tools = names.tools == kAuto ? ToolFormatOf(templates) : FindToolFormat(names.tools);
  if (names.tools == kAuto && formats.tools == nullptr && chat_template != nullptr &&
      !RolesOf(chat_template).tools)
    formats.tools = FindToolFormat("generic");
  formats.reasoning = names.reasoning == kAuto ? ReasoningFormatOf(templates)
                                               : FindReasoningFormat(names.reasoning);
  if (formats.tools != nullptr) {
    formats.special_tools = IsSpecial(formats.tools->begin, tokenizer) ||
                            IsSpecial(formats.tools->end, tokenizer);
  }
  if (formats.reasoning != nullptr) {
    formats.special_reasoning = IsSpecial(formats.reasoning->begin, tokenizer) ||
                                IsSpecial(formats.reasoning->end, tokenizer);
  }
  formats.tools_by = SourceOf(names.tools);
  formats.reasoning_by = SourceOf(names.reasoning);
  return formats;
}

}  // namespace diffserve
