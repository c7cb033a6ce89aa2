// SPDX-License-Identifier: Apache-2.0
// AnswerMessages: converts the events of one response to messages of
// diffserve.v1.Inference.Generate.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "engine/response_stream.h"
#include "engine/text/tokenizer.h"
#include "server/api/reply/chat_text.h"
#include "server/serving/answer/answer_request.h"

namespace diffserve {

namespace v1 {
class GenerateResponse;
}  // namespace v1

class AnswerMessages {
 public:
  // `request`: the one that is answered; `request_id`: its id in the answer.
  AnswerMessages(const AnswerRequest& request, std::string request_id, const Tokenizer& tokenizer);
  // Not movable: its choices refer to it.
  AnswerMessages(const AnswerMessages&) = delete;
  AnswerMessages& operator=(const AnswerMessages&) = delete;

  // Appends the messages of one event. A ResponseDone becomes the usage message if it is OK.
  void Append(const ResponseEvent& event, std::deque<v1::GenerateResponse>* out);

 private:
  using Messages = std::deque<v1::GenerateResponse>;
  void AppendOne(const ResponseStarted& started, Messages* out);
  void AppendOne(const ResponsePromptLogprobs& scores, Messages* out);
  void AppendOne(const ResponseDelta& delta, Messages* out);
  void AppendOne(const ResponseDone& done, Messages* out);

  const int n_;
  const bool logprobs_, hides_eos_;
  const ChatForm form_;
  const Tokenizer& tokenizer_;
  std::vector<ChatText> choices_;
  size_t prompt_opening_tokens_ = 0;
};

}  // namespace diffserve
