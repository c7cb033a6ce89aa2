// SPDX-License-Identifier: Apache-2.0
// Chooses the formats in which a model's answers are read: as the flags say, or with `auto` as its
// chat template shows. Thread safety: functions without state.
#pragma once

#include <string>
#include <string_view>

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "server/serving/tools/tool_format.h"

namespace diffserve {

// The format that a chat template's Jinja text shows; nullptr: none.
const ToolFormat* ToolFormatOf(std::string_view templates);
const ReasoningFormat* ReasoningFormatOf(std::string_view templates);

// --tool-call-parser and --reasoning-parser: a format's name, "none", or "auto".
struct AnswerParserNames {
  std::string tools = "auto", reasoning = "auto";
};
// `chat_template` may be null. `auto` takes the format generic for a template that shows no tools.
AnswerFormats ChooseFormats(const AnswerParserNames& names, const ChatTemplate* chat_template,
                            const Tokenizer& tokenizer);

}  // namespace diffserve
