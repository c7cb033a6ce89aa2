// SPDX-License-Identifier: Apache-2.0
// The simulation's random choices: engine sizes, and requests that fit or almost fit.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/contract/options.h"
#include "engine/contract/request.h"
#include "tests/testing/engine/fake_constraint.h"

namespace diffserve::testing {

inline constexpr int kSimulatedVocab = 40;

struct Dice {
  std::mt19937_64 random;
  int Pick(int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Pick(1, 100) <= percent; }
  std::vector<int32_t> Tokens(int count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = Pick(0, kSimulatedVocab - 1);
    return tokens;
  }
};

inline EngineOptions RandomOptions(Dice& dice, int speculative_tokens) {
  EngineOptions options;
  options.speculative_tokens = speculative_tokens;
  if (speculative_tokens % 2 == 1) options.speculative_history_bytes = 1 << 16;
  options.page_size = 1 << dice.Pick(0, 4);
  options.num_pages = dice.Pick(3, 40);
  const int slots = options.page_size * options.num_pages;
  options.max_model_len = std::max(4, dice.Chance(50) ? slots : dice.Pick(4, 2 * slots));
  options.max_num_seqs = dice.Pick(1, 12);
  options.max_num_batched_tokens = dice.Chance(30) ? dice.Pick(1, 8) : dice.Pick(8, 100);
  options.enable_prefix_caching = dice.Chance(85);
  options.max_preemptions_per_sequence = dice.Pick(0, 4);
  if (dice.Chance(20)) options.max_waiting_requests = dice.Pick(1, 12);
  options.drain_grace_ms = 0;
  return options;
}

// The same for a model whose layers keep states and see windows.
inline EngineOptions WithStates(Dice dice, EngineOptions options) {
  options.num_state_slots = options.MaxRunning() + dice.Pick(0, 6);
  options.state_snapshot_interval = options.page_size * dice.Pick(0, 4);
  if (dice.Chance(20)) return options;
  options.window = dice.Pick(1, 3 * options.page_size);
  options.num_window_pages = static_cast<int>(options.WindowPagesMin(options.MaxRunning())) +
                             dice.Pick(0, 20);
  return options;
}

// The same with a draft model.
inline EngineOptions WithDraft(Dice dice, EngineOptions options) {
  options.draft_cost = 0.01 * dice.Pick(1, 40);
  options.draft_len_max = dice.Chance(70) ? options.max_model_len
                                          : dice.Pick(1, options.max_model_len);
  return options;
}

// Makes the requests of one engine: their prompts begin with one of a few runs of tokens.
class RandomRequests {
 public:
  RandomRequests(Dice& dice, const EngineOptions& options) : options_(options) {
    for (int i = 0; i < 4; ++i) families_.push_back(dice.Tokens(options.max_model_len));
    if (dice.Chance(30)) penalty_percent_ = 15;
    if (dice.Chance(50)) num_clients_ = dice.Pick(2, 4);
    if (dice.Chance(40)) masked_percent_ = dice.Pick(5, 80);
    if (dice.Chance(30)) num_priorities_ = dice.Pick(2, 30);
  }

  Request Next(Dice& dice) const {
    Request request;
    const int longest = std::max(
        1, std::min(options_.max_model_len, options_.page_size * options_.num_pages) /
               dice.Pick(1, 6));
    std::vector<int32_t> prompt = families_[dice.Pick(0, 3)];
    prompt.resize(dice.Pick(1, longest));
    if (dice.Chance(60)) {
      const int own = dice.Pick(0, static_cast<int>(prompt.size()) / 2);
      const std::vector<int32_t> suffix = dice.Tokens(own);
      std::copy(suffix.begin(), suffix.end(), prompt.end() - own);
    }
    request.prompt = std::move(prompt);
    request.max_tokens = dice.Pick(1, std::max(1, longest));
    if (request.prompt.size() % 3 == 0) request.prediction = Predicted(request.prompt.ids().back());
    request.sampling.temperature = dice.Chance(30) ? 0.0f : 1.0f;
    request.sampling.seed = dice.Pick(0, 3);
    if (dice.Chance(penalty_percent_)) request.sampling.presence_penalty = 1.0f;
    if (dice.Chance(20)) request.sampling.num_logprobs = dice.Pick(0, 3);
    if (dice.Chance(10)) request.sampling.prompt_logprobs = dice.Pick(0, 2);
    if (request.sampling.prompt_logprobs >= 0 && dice.Chance(50)) request.max_tokens = 0;
    if (dice.Chance(60)) request.eos_token_ids = {3, 5};
    if (dice.Chance(30)) request.sampling.stop_token_ids = {7};
    if (dice.Chance(20)) request.sampling.ignore_eos = true;
    if (dice.Chance(20)) request.sampling.min_tokens = dice.Pick(0, request.max_tokens);
    if (dice.Chance(25)) request.cache_salt = "tenant";
    if (dice.Chance(masked_percent_)) Constrain(dice, &request);
    if (num_priorities_ > 1) request.priority = dice.Pick(-1, num_priorities_ - 2);
    // The first client sends most of them.
    request.client = static_cast<uint64_t>(dice.Chance(60) ? 1 : dice.Pick(1, num_clients_));
    if (request.client < 4) request.history_owner = std::string(1, 'a' + char(request.client));
    return request;
  }

 private:
  // What FakeExecutor usually draws after the token.
  static std::vector<int32_t> Predicted(int32_t before) {
    std::vector<int32_t> tokens(40);
    for (int32_t& token : tokens) token = before = (before * 5 + 7) % kSimulatedVocab;
    return tokens;
  }
  static void Constrain(Dice& dice, Request* request) {
    if (dice.Chance(80)) {
      FakeConstraint::Options options = {.seed = dice.random(),
                                         .vocab_size = kSimulatedVocab,
                                         .one_of = dice.Pick(1, 8),
                                         .ends = request->eos_token_ids,
                                         .forgets = dice.Chance(50)};
      if (options.one_of == 8) options.one_of = 1 << 30;  // one token, which is forced
      if (!options.ends.empty() && dice.Chance(15)) options.ends_after = dice.Pick(0, 8);
      if (dice.Chance(10)) options.fill_fails_after = dice.Pick(0, 8);
      if (dice.Chance(10)) options.accept_fails_after = dice.Pick(0, 8);
      request->constraint = std::make_shared<FakeConstraint>(std::move(options));
    }
    if (dice.Chance(20)) {
      std::vector<uint32_t> mask(MaskWords(kSimulatedVocab));
      for (uint32_t& word : mask)
        word = static_cast<uint32_t>(dice.random() | dice.random() | dice.random());
      request->allowed_tokens = std::make_shared<const std::vector<uint32_t>>(std::move(mask));
    }
    if (dice.Chance(30)) {
      std::vector<std::vector<int32_t>> words;
      for (int i = dice.Pick(1, 30); i > 0; --i) words.push_back(dice.Tokens(dice.Pick(1, 3)));
      request->bad_words = std::make_shared<const std::vector<std::vector<int32_t>>>(
          std::move(words));
    }
  }

  const EngineOptions& options_;
  std::vector<std::vector<int32_t>> families_;
  int penalty_percent_ = 0, masked_percent_ = 0, num_priorities_ = 1;
  int num_clients_ = 1;
};

}  // namespace diffserve::testing
