// SPDX-License-Identifier: Apache-2.0
// AnswerSplitter: splits the text of an answer, piece by piece, into parts for the encoders.
// Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/response_stream.h"
#include "server/api/reply/logprobs_text.h"
#include "server/serving/answer/answer_parser.h"
#include "server/serving/answer/answer_request.h"

namespace diffserve {

struct AnswerSplitter {
  // Call before the first delta: the text that the answer continues.
  std::function<void(const PromptInfo& prompt)> begin;
  // Appends the parts of the next delta; with the last delta also all held-back text.
  std::function<void(const ResponseDelta& delta, std::vector<AnswerPart>* parts)> read;
};

// The splitter for the answer to `request`, which reads it as its AnswerForm says. Without tools
// and reasoning, all of the answer is content.
AnswerSplitter SplitterOf(const AnswerRequest& request, TokenBytes token_bytes);

// Whether something other than the model ended the text.
bool IsCut(const ResponseDelta& last);

// The delta's text. If AnswerRequest::hides_eos is set, without the token that ended it.
std::string_view ShownText(const ResponseDelta& delta, bool hides_eos,
                           const TokenBytes& token_bytes);

}  // namespace diffserve
