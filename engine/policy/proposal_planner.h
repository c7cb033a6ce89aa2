// SPDX-License-Identifier: Apache-2.0
// ProposalPlanner: chooses the proposed tokens of each step, as many as give the most tokens for
// the step's cost, and learns which were right. Guesses come from the sequence's own text, from the
// client's earlier answers, from its constraint, or from a draft model. Numbers only. Owned by the
// Scheduler.
#pragma once

#include <optional>
#include <vector>

#include "engine/policy/answer_history.h"
#include "engine/policy/sequence_pages.h"
#include "engine/policy/step_costs.h"

namespace diffserve {

class ProposalPlanner {
 public:
  using Running = SequencePages::Running;
  struct Counters {
    uint64_t proposals = 0;
    GuessCounts proposed_tokens, accepted_tokens;
  };
  // `pages` outlives this object.
  ProposalPlanner(const EngineOptions& options, SequencePages& pages);

  // Called once for each new sequence.
  void Add(Sequence& sequence) const;
  // Adds proposed tokens after the last tokens of sequences that decode. They use free pages only;
  // no sequence is preempted for them.
  void Plan(Running running, const StepCosts& costs);
  // The draft model's work for the sequence in the plan being built.
  DraftWork TakeDraft(Sequence& sequence);
  // Records how many of the proposed tokens were right.
  void Learn(Sequence& sequence, int proposed, int accepted);
  // Keeps the answer of a sequence that ends.
  void Remember(const Sequence& sequence, FinishReason finish);

  const Counters& counters() const { return counters_; }
  int64_t history_bytes() const { return history_ ? history_->bytes() : 0; }

 private:
  struct Offer;      // the tokens that may be proposed for a sequence
  struct StepValue;  // what a step is expected to give, and what it costs in tokens

  void ReadTexts(Running running, bool of_all);
  int MaxProposed(const Sequence& sequence, int rows) const;
  Guess GuessFor(Sequence& sequence, int rows, double chance_min);
  Guess DraftGuess(const Sequence& sequence, int rows) const;
  void OfferDrafts(std::vector<Offer>& offers, const StepValue& step, int rows,
                   const StepCosts& costs);
  static void ChooseCounts(std::vector<Offer>& offers, StepValue step, int rows, int rows_max,
                           const StepCosts& costs);
  void Propose(Offer& offer);

  const EngineOptions options_;
  SequencePages& pages_;
  std::optional<AnswerHistory> history_;
  DraftRecord draft_record_;  // of all sequences
  Counters counters_;
};

}  // namespace diffserve
