// Which formats a model's answers are read in: what the flags say or, where they leave it to the
// model, what its chat template tells. Thread safety: functions without state.
#pragma once

#include <string>
#include <string_view>

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "server/answer/tool_format.h"

namespace diffserve {

// What the Jinja text of chat templates tells; nullptr: nothing.
const ToolFormat* ToolFormatOf(std::string_view templates);
const ReasoningFormat* ReasoningFormatOf(std::string_view templates);

// --tool-call-parser and --reasoning-parser: a format's name, "none", or "auto".
struct AnswerParserNames {
  std::string tools = "auto", reasoning = "auto";
};
// `chat_template` may be null. Logs what was chosen.
AnswerFormats ChooseFormats(const AnswerParserNames& names, const ChatTemplate* chat_template,
                            const Tokenizer& tokenizer);

}  // namespace diffserve
