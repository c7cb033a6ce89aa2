// The Scheduler's part that deals with proposed tokens: which a step computes, and which of them
// turn out to be the sequence's.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace diffserve {
namespace {

// Rows of a step beyond which nothing is proposed: up to there a step mostly waits for the weights,
// which all rows share.
constexpr int kRowsMax = 8;

}  // namespace

// Puts proposed tokens behind the last one of each sequence that decodes, oldest first. They take
// pages that are left, and nobody is preempted for them.
void Scheduler::PlanProposals() {
  if (options_.speculative_tokens == 0) return;
  int rows = std::min(kRowsMax, options_.max_num_batched_tokens);
  for (const auto& sequence : running_) rows -= sequence->num_planned;
  for (const auto& sequence : running_) {
    if (rows <= 0) return;
    if (sequence->num_planned != 1 || sequence->num_remaining() != 1) continue;
    if (sequence->share != kUnlimited) continue;  // its client has no more than that
    const Request& request = sequence->request;
    int64_t limit = std::min<int64_t>(rows, MaxCachedTokens(request) - sequence->num_tokens());
    // The same tokens are banned from all draws of a step.
    if (const int missing = request.min_tokens - sequence->num_outputs(); missing > 0)
      limit = std::min<int64_t>(limit, missing - 1);
    sequence->proposed = sequence->proposer->Propose({request.prompt, sequence->outputs()},
                                                     static_cast<int>(limit));
    const int planned = PlanTokens(*sequence, static_cast<int>(sequence->proposed.size()));
    sequence->proposed.resize(static_cast<size_t>(planned));
    rows -= planned;
    counters_.proposals += planned > 0 ? 1 : 0;
    counters_.proposed_tokens += static_cast<uint64_t>(planned);
  }
}

// The first draw is the sequence's next token, and the draw behind a proposed token is the one
// after that if the token is what was drawn for its place. Returns how many of the planned tokens
// are not the sequence's: they are as if they had not been planned.
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
    // A draw that is not finite is left to the next step, which meets it alone.
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
  return rejected;
}

}  // namespace diffserve
