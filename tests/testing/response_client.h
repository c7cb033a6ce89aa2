// SPDX-License-Identifier: Apache-2.0
// ResponseClient: collects the events of a stream of Responses. Also makes events of the engine and
// results of the text work.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/text/responses.h"
#include "tests/testing/text_fixture.h"

namespace diffserve {

// Collects the events of its stream.
struct Client {
  explicit Client(size_t max_bytes = 1 << 20)
      : stream(std::make_shared<ResponseStream>(max_bytes, nullptr)) {}

  void Read() {
    while (auto event = stream->TryPop()) Take(std::move(*event));
  }

  std::shared_ptr<ResponseStream> stream;
  int started = 0;
  std::map<int, std::string> text;
  std::map<int, std::vector<SampleResult>> tokens;
  std::map<int, ResponseDelta> last;
  std::vector<ResponsePromptLogprobs> prompt_logprobs;
  std::vector<ResponseDone> done;

 private:
  void Take(ResponseEvent event) {
    EXPECT_TRUE(done.empty()) << "nothing follows ResponseDone";
    if (auto* delta = std::get_if<ResponseDelta>(&event)) {
      EXPECT_EQ(started, 1) << "the start comes first";
      EXPECT_FALSE(last.contains(delta->choice)) << "nothing follows a finish";
      EXPECT_TRUE(IsValidUtf8(delta->text));
      text[delta->choice] += delta->text;
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
};

inline TokenEvent Event(RequestId id, std::vector<int32_t> tokens,
                        FinishReason finish = FinishReason::kNone) {
  TokenEvent event;
  event.request = id;
  event.tokens = std::move(tokens);
  event.finish = finish;
  return event;
}

// `n` continuations of each prompt; `prompt_tokens` are the prompts' lengths.
inline TokenizedRequest Ask(const std::vector<int>& prompt_tokens, int n) {
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
