// SPDX-License-Identifier: Apache-2.0
// Scheduler, speculation: chooses the proposed tokens of each step, and keeps those that were
// right.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/scheduler.h"

namespace diffserve {
namespace {

// Operations of all proposers per step, under a millisecond. 128k tokens of text need some 70
// steps. Usually these are the steps that compute the prompt.
constexpr int64_t kReadsPerStep = 1 << 15;
// Overhead of a step in tokens, if it is not known, and at least. A measured one can be too low
// until steps of several sizes have run, and proposals make such steps.
constexpr int kOverheadUnknown = EngineOptions::kVerifiedRowsMax, kOverheadMin = 1;
// In tokens of a step; so that guesses are compared where rows are free.
constexpr double kRowCostMin = 1e-6;

// Shorter matches in other answers are mostly chance.
constexpr int kHistoryMatchMin = 3;

}  // namespace

// Lets the proposers read new text, oldest first. `of_all`: also of sequences that decode.
void Scheduler::ReadTexts(bool of_all) {
  int64_t budget = kReadsPerStep;
  for (const auto& sequence : running_) {
    if (!of_all && sequence->num_planned <= 1) continue;
    budget -= sequence->proposer->Read(sequence->request.prompt, sequence->outputs(), budget);
  }
  if (of_all && history_) history_->Read(budget);
}

int Scheduler::OverheadTokens() const {
  return std::max(kOverheadMin, overhead_tokens_.value_or(kOverheadUnknown));
}

// REQUIRES: rows <= kVerifiedRowsMax.
double Scheduler::CostOfStep(int rows) const {
  return row_costs_ ? (*row_costs_)[static_cast<size_t>(rows)] : OverheadTokens() + rows;
}

// Keeps the answer of a sequence that has come to its end.
void Scheduler::Remember(const Sequence& sequence, FinishReason finish) {
  const bool is_whole = finish == FinishReason::kStop || finish == FinishReason::kLength;
  const Request& request = sequence.request;
  if (history_ && is_whole && !request.history_owner.empty())
    history_->Add(request.history_owner, request.prompt, sequence.outputs());
}

// How many tokens may be proposed for the sequence, at most `rows`. Only for one that decodes.
int Scheduler::MaxProposed(const Sequence& sequence, int rows) const {
  if (sequence.num_planned != 1 || sequence.num_remaining() != 1) return 0;
  if (sequence.share != kUnlimited) return 0;  // its client has no tokens beyond its share
  const Request& request = sequence.request;
  const int end = sequence.num_tokens();
  int64_t limit = std::min<int64_t>(rows, MaxCachedTokens(request) - end);
  // All draws of a step share one list of banned tokens.
  if (const int missing = request.sampling.min_tokens - sequence.num_outputs(); missing > 0)
    limit = std::min<int64_t>(limit, missing - 1);
  // Snapshots of states are of tokens that are known.
  limit = std::min<int64_t>(limit, states_.NextSnapshot(sequence, end) - end - 1);
  limit = std::min<int64_t>(limit, options_.speculative_tokens);
  return static_cast<int>(std::max<int64_t>(limit, 0));
}

// The guess for a sequence that decodes, at most `rows` tokens. A first token that is at most as
// likely as `chance_min` need not be guessed.
Guess Scheduler::GuessFor(Sequence& sequence, int rows, double chance_min) {
  const int count = MaxProposed(sequence, rows);
  if (count == 0) return {};
  const Request& request = sequence.request;
  Proposer& proposer = *sequence.proposer;
  Guess guess = proposer.Propose(request.prompt, sequence.outputs(), count, chance_min);
  if (history_ && !request.history_owner.empty() && proposer.SearchesHistory()) {
    const SequenceText text = {.prompt = request.prompt, .outputs = sequence.outputs()};
    const int length_min = std::max(kHistoryMatchMin, guess.match + 1);
    const AnswerHistory::Found found = history_->Find(request.history_owner, text, length_min,
                                                      count);
    Guess past = proposer.ProposeFound(found, count);
    if (!past.tokens.empty()) guess = std::move(past);
  }
  if (request.constraint == nullptr) return guess;
  Guess forced = proposer.ProposeForced(*request.constraint, count, chance_min);
  return forced.expected() > guess.expected() ? forced : guess;
}

// Adds proposed tokens after the last tokens of sequences that decode, as many as give the most
// tokens for a step's cost.
void Scheduler::PlanProposals() {
  if (options_.speculative_tokens == 0) return;
  const int rows_max = std::min(EngineOptions::kVerifiedRowsMax, options_.max_num_batched_tokens);
  int rows = 0;
  double expected = 0;  // tokens that the step gives
  for (const auto& sequence : running_) {
    rows += sequence->num_planned;
    expected += sequence->num_planned == sequence->num_remaining() ? 1 : 0;
  }
  ReadTexts(rows < rows_max);
  if (rows >= rows_max || rows == 0) return;
  StepValue step = {.tokens = expected, .cost = CostOfStep(rows)};
  step.row_cost = std::max(kRowCostMin, (CostOfStep(rows_max) - step.cost) / (rows_max - rows));
  std::vector<Offer> offers;
  for (const auto& sequence : running_) {
    Guess guess = GuessFor(*sequence, rows_max - rows, MinRowCost(rows, rows_max) * step.rate());
    if (!guess.tokens.empty() || options_.draft_cost > 0)
      offers.push_back({.sequence = sequence.get(), .guess = std::move(guess)});
  }
  if (offers.empty()) return;
  if (options_.draft_cost > 0) OfferDrafts(offers, step, rows_max - rows);
  ChooseCounts(offers, step, rows, rows_max);
  for (Offer& offer : offers) Propose(offer);
}

// The least that a further row costs on average, up to any number of rows.
double Scheduler::MinRowCost(int rows, int rows_max) const {
  const double cost = CostOfStep(rows);
  double least = std::numeric_limits<double>::infinity();
  for (int more = 1; rows + more <= rows_max; ++more)
    least = std::min(least, (CostOfStep(rows + more) - cost) / more);
  return least;
}

// Adds rows one by one, each for the token that is most likely right for its cost, and keeps the
// number of rows that gave the most tokens for a step's cost.
void Scheduler::ChooseCounts(std::vector<Offer>& offers, StepValue step, int rows,
                             int rows_max) const {
  const auto value = [&step](const Offer& offer) {
    return offer.chance() / (step.row_cost + offer.guess_cost);
  };
  double best = step.rate(), guess_cost = 0;
  while (rows < rows_max) {
    Offer& next = *std::ranges::max_element(offers, {}, value);  // the oldest of equals
    if (next.chance() == 0) break;
    ++rows;
    guess_cost += next.guess_cost;
    step.tokens += next.chance();
    step.cost = CostOfStep(rows) + guess_cost;
    ++next.count;
    if (step.rate() <= best) continue;
    best = step.rate();
    for (Offer& offer : offers) offer.best_count = offer.count;
  }
}

// Proposals use free pages only; no sequence is preempted for them.
void Scheduler::Propose(Offer& offer) {
  if (offer.best_count == 0) return;
  Sequence& sequence = *offer.sequence;
  sequence.proposed = std::move(offer.guess.tokens);
  sequence.proposed_from = offer.guess.source;
  const int count = states_.TakeRows(sequence, static_cast<int>(offer.best_count));
  const int planned = PlanTokens(sequence, count);
  sequence.proposed.resize(static_cast<size_t>(planned));
  states_.TrimRows(sequence, planned);
  if (planned > 0 && sequence.proposed_from == GuessSource::kDraft)
    sequence.draft = {draft_pages_.Count(sequence), sequence.num_tokens(), planned};
  counters_.proposals += planned > 0 ? 1 : 0;
  counters_.proposed_tokens.of(sequence.proposed_from) += static_cast<uint64_t>(planned);
}

// Takes the draws of a step. The first draw is the sequence's next token. The draw after a proposed
// token counts only if the draw before it gave that token. Returns how many planned tokens were
// wrong; they count as not planned.
int Scheduler::TakeDraws(Sequence& sequence, const Due& due, const SequenceResult& result,
                         TokenEvent& event) {
  if (due.samples == 0) return 0;
  const std::vector<SampleResult>& samples = result.samples;
  const bool is_drafted = sequence.proposed_from == GuessSource::kDraft;
  const std::vector<int32_t> known = std::exchange(sequence.proposed, {});
  const std::vector<int32_t>& proposed = is_drafted ? result.guesses : known;
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
  if (due.samples > 1) Learn(sequence, due.samples - 1, taken - 1);
  sequence.tail.resize(sequence.tail.size() - static_cast<size_t>(rejected));
  sequence.num_computed -= rejected;
  TrimPages(sequence);
  states_.TakeBack(sequence, rejected);
  return rejected;
}

// Records how many of the proposed tokens were right.
void Scheduler::Learn(Sequence& sequence, int proposed, int accepted) {
  counters_.accepted_tokens.of(sequence.proposed_from) += static_cast<uint64_t>(accepted);
  if (sequence.proposed_from == GuessSource::kPrediction) {
    sequence.prediction_use.accepted += accepted;
    sequence.prediction_use.rejected += proposed - accepted;
  }
  if (sequence.proposed_from == GuessSource::kDraft) {
    sequence.draft_record.Learn(proposed, accepted);
    draft_record_.Learn(proposed, accepted);
  } else {
    sequence.proposer->Learn(sequence.proposed_from, proposed, accepted);
  }
}

}  // namespace diffserve
