// SPDX-License-Identifier: Apache-2.0
// Scheduler, draft model: for which sequences it guesses tokens, and what it computes before it
// can.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/scheduler.h"

namespace diffserve {
namespace {

// That a guess is right, before any was tried.
constexpr double kExpectedChance = 0.7;
// The draft model computes at least as many known tokens per step, if it has to.
constexpr double kCaughtUpMin = 16;
// Within how many tokens that must be repaid. Most sequences end long before their max_tokens.
constexpr int64_t kRepaidWithin = 256;
// A draft that was wrong is tried again for a sequence if drafting all its tokens costs at most
// this share of a step per token.
constexpr double kKeptUpMax = 0.01;

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

DraftCost Scheduler::CostOfDraft() const {
  return draft_cost_.value_or(
      DraftCost{.pass = options_.draft_cost * OverheadTokens(), .token = options_.draft_cost});
}

// What the draft model may guess: at most `rows` tokens, with their chances.
Guess Scheduler::DraftGuess(const Sequence& sequence, int rows) const {
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
void Scheduler::OfferDrafts(std::vector<Offer>& offers, const StepValue& step, int rows) {
  draft_pages_.BeginPlan();
  draft_record_.Fade();
  const DraftCost cost = CostOfDraft();
  const auto num_sharing = std::ranges::count_if(
      offers, [&](const Offer& offer) { return MaxProposed(*offer.sequence, rows) > 0; });
  const double guess_cost = cost.token + cost.pass / static_cast<double>(num_sharing);
  int budget = static_cast<int>(std::min<double>(
      options_.max_num_batched_tokens, std::max(kCaughtUpMin, OverheadTokens() / cost.token)));
  for (Offer& offer : offers) {
    Sequence& sequence = *offer.sequence;
    if (cost.token * step.rate() < kKeptUpMax) sequence.draft_record.Fade();
    Guess guess = DraftGuess(sequence, rows);
    const GuessValue value = ValueOf(guess, step.row_cost + guess_cost, step.rate());
    if (value.gain <= ValueOf(offer.guess, step.row_cost, step.rate()).gain) continue;
    const int drafted = draft_pages_.Count(sequence);
    const int missing = sequence.num_tokens() - drafted;
    const auto left = static_cast<double>(
        std::min(kRepaidWithin, MaxCachedTokens(sequence.request) - sequence.num_tokens()));
    const bool repays = missing * cost.token * step.rate() <= value.gain * left / value.tokens;
    if (!repays || budget == 0 || !draft_pages_.Reserve(sequence, drafted)) continue;
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
