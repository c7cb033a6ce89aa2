// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/text/response_client.h"

#include <gtest/gtest.h>

#include <utility>

namespace diffserve {

void Client::Read() {
  while (auto event = stream->TryPop()) Take(std::move(*event));
}

void Client::Take(ResponseEvent event) {
  EXPECT_TRUE(done.empty()) << "nothing follows ResponseDone";
  if (auto* delta = std::get_if<ResponseDelta>(&event)) {
    EXPECT_EQ(started, 1) << "the start comes first";
    EXPECT_FALSE(last.contains(delta->choice)) << "nothing follows a finish";
    EXPECT_TRUE(IsValidUtf8(delta->text));
    text[delta->choice] += delta->text;
    cached_tokens += delta->cached_tokens;
    for (SampleResult& token : delta->tokens) tokens[delta->choice].push_back(token);
    if (delta->finish != FinishReason::kNone) last[delta->choice] = *delta;
  } else if (auto* logprobs = std::get_if<ResponsePromptLogprobs>(&event)) {
    prompt_logprobs.push_back(*logprobs);
  } else if (std::holds_alternative<ResponseStarted>(event)) {
    ++started;
  } else {
    done.push_back(std::get<ResponseDone>(event));
  }
}

TokenEvent Event(RequestId id, std::vector<int32_t> tokens, FinishReason finish) {
  TokenEvent event;
  event.request = id;
  event.tokens = std::move(tokens);
  event.finish = finish;
  return event;
}

TokenizedRequest Ask(const std::vector<int>& prompt_tokens, int n) {
  TokenizedRequest tokenized;
  for (const int count : prompt_tokens) {
    Request request;
    request.prompt = std::vector<int32_t>(static_cast<size_t>(count), 3);
    tokenized.prompts.push_back({request.prompt, ""});
    tokenized.continuations.insert(tokenized.continuations.end(), static_cast<size_t>(n), request);
  }
  return tokenized;
}

}  // namespace diffserve
