// SPDX-License-Identifier: Apache-2.0
// FakeExecutor: an Executor without a model. Each draw is a pure hash of the sequence's tokens and
// its sampling key. It uses pages like a real executor: each slot stores the hash of the token
// chain up to it, and draws are computed from the pages. So a wrong prefix hit, a stale page or a
// page with two writers gives other tokens than Continue(), which needs no pages. It also checks
// that each plan is legal, and otherwise throws std::logic_error with the reason. Like a device it
// keeps the tokens that it has drawn, so with a depth above 1 it computes with tokens that the
// engine does not know yet.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "engine/contract/options.h"
#include "engine/draw_masks.h"
#include "engine/executor.h"

namespace diffserve::testing {

class FakeExecutor : public Executor {
 public:
  struct Options {
    int vocab_size = 256;
    int depth = 1;
    int right_draft_percent = 0;  // how often the draft model guesses what is drawn
    // Whether this draw (or score) finds NaN logits; `position` is that of the token to be drawn or
    // scored.
    std::function<bool(RequestId, int position)> is_corrupt = nullptr;
    // Called in Collect, before it returns; may block or throw.
    std::function<void(uint64_t step)> on_collect = nullptr;
  };

  FakeExecutor(const EngineOptions& engine_options, Options options);
  explicit FakeExecutor(const EngineOptions& engine_options)
      : FakeExecutor(engine_options, Options()) {}

  int depth() const override { return options_.depth; }
  // The step runs here. Callers can only observe that steps run in launch order.
  void Launch(const StepPlan& plan) override;
  StepResult Collect() override;

  // What the slots of an entry's page hold, or those of a snapshot's window pages and its state.
  std::vector<std::span<uint64_t>> Content(const TierEntry& entry);

  // All tokens that `request` gets if only its constraint may stop it early: by an error, or by
  // leaving no token to draw. REQUIRES: its constraint has accepted nothing.
  static std::vector<int32_t> Continue(const Request& request, int vocab_size = 256,
                                       Status* error = nullptr);

  // The scores of prompt tokens 1, 2, ...
  static std::vector<float> PromptScores(const Request& request);

 private:
  struct State {
    std::vector<int32_t> tokens;  // prompt and all drawn tokens
    uint64_t drawn_in = 0;        // the step that drew the last one; 0: none
  };
  struct LaunchedStep {
    uint64_t step = 0;
    StepResult result;
  };

  uint64_t& SlotOf(std::vector<uint64_t>& slots, const PlannedSequence& planned,
                   int position) const;

  // A page that this step writes is in no other page table of the step.
  void CheckWriters(const StepPlan& plan) const;

  // A page that the draft model writes in this step is used by it for one sequence only.
  void CheckDraftWriters(const StepPlan& plan) const;
  const std::vector<int32_t>& TokensOf(const Request& request);
  std::vector<int32_t> Guesses(const PlannedSequence& planned);

  // For models with states: a slot or window page written for one sequence is not used by another.
  void CheckStates(const StepPlan& plan) const;

  // Checks and stores states: `chain` is the sequence's state after `position` tokens.
  void TakeState(const PlannedSequence& planned, int position, uint64_t chain);
  void TakeWindowSlot(const PlannedSequence& planned, int position, uint64_t chain);
  void CheckAndWrite(const PlannedSequence& planned);
  void CheckTokens(const PlannedSequence& planned) const;
  void CheckDraw(const PlannedSequence& planned) const;
  SequenceResult ResultOf(const PlannedSequence& planned, const DrawMasks::Entry& masks);

  // A state is the hash of its token's chain.
  void PoolStates(const PlannedSequence& planned, SequenceResult& result);

  const int page_size_;
  const int max_tokens_;
  const int max_sequences_;
  const Options options_;
  DrawMasks masks_;
  const int window_;
  std::vector<uint64_t> slots_;  // [num_pages * page_size]: hash of the token chain that ends there
  std::vector<uint64_t> draft_slots_;   // the same for the draft model
  std::vector<uint64_t> window_slots_;  // the same for window pages
  std::vector<uint64_t> states_;        // [state slots] hash of the tokens before
  std::map<RequestId, State> sequences_;
  std::deque<LaunchedStep> launched_;  // not collected yet, oldest first
  uint64_t step_ = 0;
};

}  // namespace diffserve::testing
