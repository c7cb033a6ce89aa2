// SPDX-License-Identifier: Apache-2.0
// TokenResponse: a response of token ids, in the format of vLLM's /inference/v1/generate, whole or
// as server-sent events; log-probabilities have the chat format.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/responses.h"
#include "engine/text/tokenizer.h"
#include "server/api/reply/logprobs_text.h"
#include "server/api/reply/response_encoder.h"
#include "server/api/vllm/request.h"

namespace diffserve {

class TokenResponse : public AnswerWriter {
 public:
  struct Identity {
    std::string request_id;
    std::string model;
    int64_t created = 0;  // Unix seconds
  };
  TokenResponse(const AnswerRequest& request, const Identity& identity, const TokenTexts& texts);

  void OnStarted(ResponseStarted event) override;
  void OnPromptLogprobs(ResponsePromptLogprobs event, AnswerState* answer) override;
  void OnDelta(ResponseDelta event, AnswerState* answer) override;
  void OnDone(AnswerState* answer) override;

 private:
  struct Choice {
    std::vector<SampleResult> tokens;
    size_t opening_tokens = 0;  // as in ResponseDelta
    FinishReason finish = FinishReason::kNone;
  };
  void AddBody(const Usage& usage, JsonWriter json) const;
  void AddChoice(size_t index, JsonWriter& json) const;
  void AddPromptLogprobs(JsonWriter& json) const;

  const bool stream_, include_usage_, continuous_usage_, logprobs_;
  const LogprobForm logprob_form_;
  std::string head_;             // members of every chunk and of the body before "choices"
  std::vector<Choice> choices_;  // of a stream: what is being written
  PromptScores prompt_scores_ = std::make_shared<const std::vector<SampleResult>>();
  size_t prompt_opening_tokens_ = 0;
  bool prompt_sent_ = false;  // of a stream: its first chunk is made
};

}  // namespace diffserve
