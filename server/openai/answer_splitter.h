// AnswerSplitter: how the encoders of /v1/messages and /v1/responses get the parts of an answer.
// Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "server/answer/answer_parser.h"
#include "server/openai/request.h"

namespace diffserve {

// Appends the parts that the next piece of text brings; with `last` also what was held back.
using AnswerSplitter =
    std::function<void(std::string_view text, bool last, std::vector<AnswerPart>* parts)>;

// Of the one answer to `request`. Without tools and reasoning all of it is content.
AnswerSplitter SplitterOf(const OpenAiRequest& request);

}  // namespace diffserve
