// SPDX-License-Identifier: Apache-2.0
// FollowedRequest: follows one request of the simulation, and checks that its events equal those of
// a run by itself.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/engine/fake_executor.h"

namespace diffserve::testing {

class FollowedRequest {
 public:
  // The result of a request that was not cut short.
  struct Outcome {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs, prompt_logprobs;
    FinishReason finish = FinishReason::kNone;
    int32_t stop_token = -1;
    std::string error;
    bool operator==(const Outcome&) const = default;
  };

  // `corrupt_position`: the position of the token with broken logits, or -1.
  FollowedRequest(Request request_in, int vocab_size, int corrupt_position_in)
      : request(std::move(request_in)),
        corrupt_position(corrupt_position_in),
        expected_(FakeExecutor::Continue(request, vocab_size, &expected_error_)) {}

  // Returns the fault of the event, or "".
  std::string Take(const TokenEvent& event) {
    outcome.tokens.insert(outcome.tokens.end(), event.tokens.begin(), event.tokens.end());
    for (const SampleResult& sample : event.logprobs) outcome.logprobs.push_back(sample.logprob);
    for (const SampleResult& sample : event.prompt_logprobs)
      outcome.prompt_logprobs.push_back(sample.logprob);
    outcome.finish = event.finish;
    outcome.stop_token = event.stop_token;
    outcome.error = event.error.message();
    if (outcome.tokens.size() > expected_.size() ||
        !std::equal(outcome.tokens.begin(), outcome.tokens.end(), expected_.begin()))
      return "12: the output is that of a run alone";
    if (request.sampling.num_logprobs >= 0 && event.logprobs.size() != event.tokens.size())
      return "12: each token has its logprob";
    if (!event.prompt_logprobs.empty()) {
      if (std::exchange(has_scores_, true)) return "11: prompt logprobs come once";
      if (outcome.prompt_logprobs != FakeExecutor::PromptScores(request))
        return "12: prompt logprobs are those of a run alone";
    }
    const bool due = request.sampling.prompt_logprobs >= 0 && request.prompt.size() > 1;
    if (!event.tokens.empty() && has_scores_ != due)
      return "11: prompt logprobs come before or with the first token";
    return {};
  }

  // Likewise of the end, if the request ended by itself.
  std::string CheckEnd(const TokenEvent& end) const {
    const int prompt_tokens = static_cast<int>(request.prompt.size());
    const int num_tokens = static_cast<int>(outcome.tokens.size());
    if (end.finish == FinishReason::kError && end.error.code() == StatusCode::kInvalidArgument) {
      return !expected_error_.ok() && outcome.tokens == expected_
                 ? ""
                 : "12: a constraint ends a sequence where it ends a run alone";
    }
    if (end.finish == FinishReason::kError) {
      if (corrupt_position <= 0 || end.error.code() != StatusCode::kInternal)
        return "an error has a cause";
      const bool in_prompt = request.sampling.prompt_logprobs >= 0 &&
                             corrupt_position < prompt_tokens;
      return in_prompt || corrupt_position == prompt_tokens + num_tokens
                 ? ""
                 : "an error comes where its cause is";
    }
    if (outcome.tokens != expected_ || !expected_error_.ok()) return "12: the output is complete";
    return end.finish == FinishReason::kStop || num_tokens == request.max_tokens
               ? ""
               : "finish_reason length means max_tokens were generated";
  }

  const Request request;
  const int corrupt_position;
  std::optional<FinishReason> cancelled_as;
  Outcome outcome;  // so far

 private:
  Status expected_error_;  // before expected_, which sets it
  const std::vector<int32_t> expected_;
  bool has_scores_ = false;
};

}  // namespace diffserve::testing
