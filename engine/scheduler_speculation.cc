// SPDX-License-Identifier: Apache-2.0
// Scheduler, speculation: chooses the proposed tokens of each step, and keeps those that were
// right.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace diffserve {
namespace {

// Operations of all proposers per step, under a millisecond. 128k tokens of text need some 70
// steps. Usually these are the steps that compute the prompt.
constexpr int64_t kReadsPerStep = 1 << 15;
constexpr double kChanceMin = 0.1;  // that a proposed token and those before it are right

}  // namespace

// Lets the proposers read new text, oldest first.
void Scheduler::ReadTexts() {
  int64_t budget = kReadsPerStep;
  for (const auto& sequence : running_)
    budget -= sequence->proposer->Read(sequence->text(), budget);
}

// Adds proposed tokens after the last token of each sequence that decodes, oldest first. They use
// free pages only; no sequence is preempted for them.
void Scheduler::PlanProposals() {
  if (options_.speculative_tokens == 0) return;
  ReadTexts();
  int rows = std::min(EngineOptions::kVerifiedRowsMax, options_.max_num_batched_tokens);
  for (const auto& sequence : running_) rows -= sequence->num_planned;
  for (const auto& sequence : running_) {
    if (rows <= 0) return;
    if (sequence->num_planned != 1 || sequence->num_remaining() != 1) continue;
    if (sequence->share != kUnlimited) continue;  // its client has no tokens beyond its share
    const Request& request = sequence->request;
    int64_t limit = std::min<int64_t>(rows, MaxCachedTokens(request) - sequence->num_tokens());
    // All draws of a step share one list of banned tokens.
    if (const int missing = request.sampling.min_tokens - sequence->num_outputs(); missing > 0)
      limit = std::min<int64_t>(limit, missing - 1);
    // Snapshots of states are of tokens that are known.
    const int end = sequence->num_tokens();
    limit = std::min<int64_t>(limit, states_.NextSnapshot(*sequence, end) - end - 1);
    Guess guess = sequence->proposer->Propose(sequence->text(), static_cast<int>(limit));
    const auto num_proposed = static_cast<int>(
        std::ranges::count_if(guess.chances, [](double chance) { return chance >= kChanceMin; }));
    sequence->proposed = std::move(guess.tokens);
    const int planned = PlanTokens(*sequence, states_.TakeRows(*sequence, num_proposed));
    sequence->proposed.resize(static_cast<size_t>(planned));
    states_.TrimRows(*sequence, planned);
    rows -= planned;
    counters_.proposals += planned > 0 ? 1 : 0;
    counters_.proposed_tokens += static_cast<uint64_t>(planned);
  }
}

// Takes the draws of a step. The first draw is the sequence's next token. The draw after a proposed
// token counts only if the draw before it gave that token. Returns how many planned tokens were
// wrong; they count as not planned.
int Scheduler::TakeDraws(Sequence& sequence, const Due& due,
                         const std::vector<SampleResult>& samples, TokenEvent& event) {
  if (due.samples == 0) return 0;
  const std::vector<int32_t> proposed = std::exchange(sequence.proposed, {});
  const int first = due.end - due.samples + 1;
  int taken = 0;
  bool goes_on = true;
  while (goes_on) {
    const SampleResult& sample = samples[static_cast<size_t>(taken)];
    TakeToken(sequence, first + taken, sample, event);
    ++taken;
    // A non-finite draw is left to the next step, where it is the only draw.
    goes_on = taken < due.samples && event.finish == FinishReason::kNone &&
              sample.token == proposed[static_cast<size_t>(taken) - 1] &&
              samples[static_cast<size_t>(taken)].finite;
  }
  const int rejected = due.samples - taken;
  if (due.samples > 1) {
    counters_.accepted_tokens += static_cast<uint64_t>(taken - 1);
    sequence.proposer->Learn(due.samples - 1, taken - 1);
  }
  sequence.tail.resize(sequence.tail.size() - static_cast<size_t>(rejected));
  sequence.num_computed -= rejected;
  TrimPages(sequence);
  states_.TakeBack(sequence, rejected);
  return rejected;
}

}  // namespace diffserve
