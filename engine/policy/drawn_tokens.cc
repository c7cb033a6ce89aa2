// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/drawn_tokens.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/contract/token_constraint.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

void TakeToken(Sequence& sequence, int position, const SampleResult& sample, TokenEvent& event) {
  const Request& request = sequence.request;
  const int num_outputs = position + 1 - sequence.num_prompt_tokens();
  sequence.tail[static_cast<size_t>(position - sequence.prompt_pages_end)] = sample.token;
  event.tokens.push_back(sample.token);
  if (request.sampling.num_logprobs >= 0) event.logprobs.push_back(sample);
  const auto is_in = [&](const std::vector<int32_t>& ids) {
    return std::ranges::find(ids, sample.token) != ids.end();
  };
  if (num_outputs > request.sampling.min_tokens) {
    if (!request.sampling.ignore_eos && is_in(request.eos_token_ids)) {
      event.finish = FinishReason::kStop;
      return;
    }
    if (is_in(request.sampling.stop_token_ids)) {
      event.finish = FinishReason::kStop;
      event.stop_token = sample.token;
      return;
    }
  }
  if (num_outputs >= request.max_tokens) {
    event.finish = FinishReason::kLength;
  } else if (request.constraint != nullptr) {
    if (Status status = request.constraint->Accept(sample.token); !status.ok())
      EndByConstraint(std::move(status), event);
  }
}

}  // namespace

void EndByConstraint(Status error, TokenEvent& event) {
  event.finish = error.code() == StatusCode::kInternal ? FinishReason::kLength
                                                       : FinishReason::kError;
  event.error = std::move(error);
}

void TakePromptScores(Sequence& sequence, int end, const SequenceResult& result,
                      TokenEvent& event) {
  if (!sequence.wants_prompt_scores()) return;
  const int scored = sequence.num_prompt_tokens() - 1;
  const int expected = std::max(0, std::min(end, scored) - sequence.num_committed);
  DS_CHECK(static_cast<int>(result.prompt_scores.size()) == expected,
           "one score for each planned token that a prompt token follows");
  sequence.prompt_scores.insert(sequence.prompt_scores.end(), result.prompt_scores.begin(),
                                result.prompt_scores.end());
  if (end < sequence.num_prompt_tokens()) return;
  event.prompt_logprobs = std::move(sequence.prompt_scores);
  sequence.prompt_scores.clear();
  sequence.prompt_scored = true;
}

int TakeDraws(Sequence& sequence, int end, const SequenceResult& result, TokenEvent& event) {
  const std::vector<SampleResult>& samples = result.samples;
  const bool is_drafted = sequence.proposed_from == GuessSource::kDraft;
  const std::vector<int32_t> known = std::exchange(sequence.proposed, {});
  const std::vector<int32_t>& proposed = is_drafted ? result.guesses : known;
  const int first = end - static_cast<int>(samples.size()) + 1;
  size_t taken = 0;
  bool goes_on = true;
  while (goes_on) {
    const SampleResult& sample = samples[taken];
    TakeToken(sequence, first + static_cast<int>(taken), sample, event);
    ++taken;
    // A non-finite draw is left to the next step, where it is the only draw.
    goes_on = taken < samples.size() && event.finish == FinishReason::kNone &&
              sample.token == proposed[taken - 1] && samples[taken].finite;
  }
  sequence.tail.resize(sequence.tail.size() - (samples.size() - taken));
  return static_cast<int>(taken);
}

}  // namespace diffserve
