// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/proposal_planner.h"

#include <algorithm>
#include <limits>
#include <utility>

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

// That a guess of the draft model is right, before any was tried.
constexpr double kExpectedChance = 0.7;
// The draft model computes at least as many known tokens per step, if it has to.
constexpr double kCaughtUpMin = 16;
// Within how many tokens that must be repaid. Most sequences end long before their max_tokens.
constexpr int64_t kRepaidWithin = 256;
// A draft that was wrong is tried again for a sequence if drafting all its tokens costs at most
// this share of a step per token.
constexpr double kKeptUpMax = 0.01;

int OverheadTokens(const StepCosts& costs) {
  return std::max(kOverheadMin, costs.overhead_tokens.value_or(kOverheadUnknown));
}

// REQUIRES: rows <= kVerifiedRowsMax.
double CostOfStep(int rows, const StepCosts& costs) {
  return costs.rows ? (*costs.rows)[static_cast<size_t>(rows)] : OverheadTokens(costs) + rows;
}

// The least that a further row costs on average, up to any number of rows.
double MinRowCost(int rows, int rows_max, const StepCosts& costs) {
  const double cost = CostOfStep(rows, costs);
  double min = std::numeric_limits<double>::infinity();
  for (int more = 1; rows + more <= rows_max; ++more)
    min = std::min(min, (CostOfStep(rows + more, costs) - cost) / more);
  return min;
}

// The part of a guess that is worth its cost.
struct GuessValue {
  double gain = 0;    // expected tokens, less what the same cost gives otherwise
  double tokens = 1;  // expected, with the draw after the known tokens
};

// `token_cost`: of each token, with its row.
GuessValue ValueOf(const Guess& guess, double token_cost, double rate) {
  GuessValue value;
  for (const double chance : guess.chances) {
    if (chance <= token_cost * rate) break;
    value.gain += chance - token_cost * rate;
    value.tokens += chance;
  }
  return value;
}

}  // namespace

// The tokens that may be proposed for a sequence.
struct ProposalPlanner::Offer {
  Sequence* sequence = nullptr;
  Guess guess = {};
  double guess_cost = 0;  // of each token before its row is computed, in tokens of a step
  size_t count = 0;       // of the guess's tokens, in the step that is looked at
  size_t best_count = 0;  // the same in the best step; it is what is proposed
  // That the next token is right; 0: there is none.
  double chance() const { return count < guess.chances.size() ? guess.chances[count] : 0; }
};

// What a step is expected to give, and what it costs in tokens.
struct ProposalPlanner::StepValue {
  double tokens = 0, cost = 0;
  double row_cost = 0;  // of each further row, on average up to the most that are verified
  double rate() const { return tokens / cost; }
};

ProposalPlanner::ProposalPlanner(const EngineOptions& options, SequencePages& pages)
    : options_(options), pages_(pages) {
  if (options.speculative_history_bytes > 0) history_.emplace(options.speculative_history_bytes);
}

void ProposalPlanner::Add(Sequence& sequence) const {
  if (options_.speculative_tokens == 0) return;
  sequence.proposer.emplace(options_.speculative_tokens, sequence.request.prompt,
                            sequence.request.prediction);
}

// Lets the proposers read new text, oldest first. `of_all`: also of sequences that decode.
void ProposalPlanner::ReadTexts(Running running, bool of_all) {
  int64_t budget = kReadsPerStep;
  for (const auto& sequence : running) {
    if (!of_all && sequence->num_planned <= 1) continue;
    budget -= sequence->proposer->Read(sequence->request.prompt, sequence->outputs(), budget);
  }
  if (of_all && history_) history_->Read(budget);
}

void ProposalPlanner::Remember(const Sequence& sequence, FinishReason finish) {
  const bool is_whole = finish == FinishReason::kStop || finish == FinishReason::kLength;
  const Request& request = sequence.request;
  if (history_ && is_whole && !request.history_owner.empty())
    history_->Add(request.history_owner, request.prompt, sequence.outputs());
}

// How many tokens may be proposed for the sequence, at most `rows`. Only for one that decodes.
int ProposalPlanner::MaxProposed(const Sequence& sequence, int rows) const {
  if (sequence.num_planned != 1 || sequence.num_remaining() != 1) return 0;
  // Its client has no tokens beyond its share.
  if (sequence.share != Sequence::kUnlimited) return 0;
  const Request& request = sequence.request;
  const int end = sequence.num_tokens();
  int64_t limit = std::min<int64_t>(rows, MaxCachedTokens(request) - end);
  // All draws of a step share one list of banned tokens.
  if (const int missing = request.sampling.min_tokens - sequence.num_outputs(); missing > 0)
    limit = std::min<int64_t>(limit, missing - 1);
  // Snapshots of states are of tokens that are known.
  const StateStore& states = pages_.states();
  limit = std::min<int64_t>(limit, states.NextSnapshot(sequence, end) - end - 1);
  limit = std::min<int64_t>(limit, options_.speculative_tokens);
  return static_cast<int>(std::max<int64_t>(limit, 0));
}

// The guess for a sequence that decodes, at most `rows` tokens. A first token that is at most as
// likely as `chance_min` need not be guessed.
Guess ProposalPlanner::GuessFor(Sequence& sequence, int rows, double chance_min) {
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

void ProposalPlanner::Plan(Running running, const StepCosts& costs) {
  if (options_.speculative_tokens == 0) return;
  const int rows_max = std::min(EngineOptions::kVerifiedRowsMax, options_.max_num_batched_tokens);
  int rows = 0;
  double expected = 0;  // tokens that the step gives
  for (const auto& sequence : running) {
    rows += sequence->num_planned;
    expected += sequence->num_planned == sequence->num_remaining() ? 1 : 0;
  }
  ReadTexts(running, rows < rows_max);
  if (rows >= rows_max || rows == 0) return;
  StepValue step = {.tokens = expected, .cost = CostOfStep(rows, costs)};
  step.row_cost = std::max(kRowCostMin,
                           (CostOfStep(rows_max, costs) - step.cost) / (rows_max - rows));
  const double chance_min = MinRowCost(rows, rows_max, costs) * step.rate();
  std::vector<Offer> offers;
  for (const auto& sequence : running) {
    Guess guess = GuessFor(*sequence, rows_max - rows, chance_min);
    if (!guess.tokens.empty() || options_.draft_cost > 0)
      offers.push_back({.sequence = sequence.get(), .guess = std::move(guess)});
  }
  if (offers.empty()) return;
  if (options_.draft_cost > 0) OfferDrafts(offers, step, rows_max - rows, costs);
  ChooseCounts(offers, step, rows, rows_max, costs);
  for (Offer& offer : offers) Propose(offer);
}

// Adds rows one by one, each for the token that is most likely right for its cost, and keeps the
// number of rows that gave the most tokens for a step's cost.
void ProposalPlanner::ChooseCounts(std::vector<Offer>& offers, StepValue step, int rows,
                                   int rows_max, const StepCosts& costs) {
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
    step.cost = CostOfStep(rows, costs) + guess_cost;
    ++next.count;
    if (step.rate() <= best) continue;
    best = step.rate();
    for (Offer& offer : offers) offer.best_count = offer.count;
  }
}

void ProposalPlanner::Propose(Offer& offer) {
  if (offer.best_count == 0) return;
  Sequence& sequence = *offer.sequence;
  sequence.proposed = std::move(offer.guess.tokens);
  sequence.proposed_from = offer.guess.source;
  const int planned = pages_.GrowProposed(sequence, static_cast<int>(offer.best_count));
  sequence.proposed.resize(static_cast<size_t>(planned));
  if (planned > 0 && sequence.proposed_from == GuessSource::kDraft)
    sequence.draft = {pages_.draft_pages().Count(sequence), sequence.num_tokens(), planned};
  counters_.proposals += planned > 0 ? 1 : 0;
  counters_.proposed_tokens.of(sequence.proposed_from) += static_cast<uint64_t>(planned);
}

DraftWork ProposalPlanner::TakeDraft(Sequence& sequence) {
  const DraftWork work = std::exchange(sequence.draft, {});
  pages_.draft_pages().Take(sequence, work);
  return work;
}

void ProposalPlanner::Learn(Sequence& sequence, int proposed, int accepted) {
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

// What the draft model may guess: at most `rows` tokens, with their chances.
Guess ProposalPlanner::DraftGuess(const Sequence& sequence, int rows) const {
  const int count = std::min({MaxProposed(sequence, rows), options_.speculative_tokens,
                              options_.draft_len_max + 1 - sequence.num_tokens()});
  Guess guess = {.source = GuessSource::kDraft};
  const double chance = sequence.draft_record.Chance(draft_record_.Chance(kExpectedChance));
  double all_right = 1;
  for (int i = 0; i < count; ++i) {
    guess.tokens.push_back(kGuessedByDraft);
    guess.chances.push_back(all_right *= chance);
  }
  return guess;
}

// Replaces guesses by the draft model's where these are worth more. A sequence of which the draft
// model has not computed enough tokens is computed further, if its remaining tokens can repay that.
// All sequences together get as many of its tokens as cost a step's overhead.
void ProposalPlanner::OfferDrafts(std::vector<Offer>& offers, const StepValue& step, int rows,
                                  const StepCosts& costs) {
  DraftPages& draft_pages = pages_.draft_pages();
  draft_pages.BeginPlan();
  draft_record_.Fade();
  const DraftCost cost = costs.draft.value_or(
      DraftCost{.pass = options_.draft_cost * OverheadTokens(costs), .token = options_.draft_cost});
  const auto num_sharing = std::ranges::count_if(
      offers, [&](const Offer& offer) { return MaxProposed(*offer.sequence, rows) > 0; });
  const double guess_cost = cost.token + cost.pass / static_cast<double>(num_sharing);
  int budget = static_cast<int>(std::min<double>(
      options_.max_num_batched_tokens, std::max(kCaughtUpMin, OverheadTokens(costs) / cost.token)));
  for (Offer& offer : offers) {
    Sequence& sequence = *offer.sequence;
    if (cost.token * step.rate() < kKeptUpMax) sequence.draft_record.Fade();
    Guess guess = DraftGuess(sequence, rows);
    const GuessValue value = ValueOf(guess, step.row_cost + guess_cost, step.rate());
    if (value.gain <= ValueOf(offer.guess, step.row_cost, step.rate()).gain) continue;
    const int drafted = draft_pages.Count(sequence);
    const int missing = sequence.num_tokens() - drafted;
    const auto left = static_cast<double>(
        std::min(kRepaidWithin, MaxCachedTokens(sequence.request) - sequence.num_tokens()));
    const bool repays = missing * cost.token * step.rate() <= value.gain * left / value.tokens;
    if (!repays || budget == 0 || !draft_pages.Reserve(sequence, drafted)) continue;
    if (missing > budget) {
      sequence.draft = {.first = drafted, .end = drafted + std::exchange(budget, 0)};
      continue;
    }
    budget -= missing;
    offer.guess = std::move(guess);
    offer.guess_cost = guess_cost;
  }
}

}  // namespace diffserve
