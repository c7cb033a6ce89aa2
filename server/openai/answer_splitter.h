// AnswerSplitter: how the encoders get the parts of an answer of its text, a piece at a time.
// Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/response_stream.h"
#include "server/answer/answer_parser.h"
#include "server/openai/logprobs_text.h"
#include "server/openai/request.h"

namespace diffserve {

struct AnswerSplitter {
  // Before the first delta: what the answer goes on with.
  std::function<void(const PromptInfo& prompt)> begin;
  // Appends the parts that the next delta brings; with the last one also what was held back.
  std::function<void(const ResponseDelta& delta, std::vector<AnswerPart>* parts)> read;
};

// Of the one answer to `request`, read as its AnswerForm says. Where that has neither tools nor
// reasoning, all of it is content.
AnswerSplitter SplitterOf(const OpenAiRequest& request, TokenBytes token_bytes);

// Whether the text ends where the model has not ended it.
bool IsCut(const ResponseDelta& last);

// The delta's text; where the end of text is hidden (OpenAiRequest::hides_eos), without the token
// that ended it.
std::string_view ShownText(const ResponseDelta& delta, bool hides_eos,
                           const TokenBytes& token_bytes);

}  // namespace diffserve
