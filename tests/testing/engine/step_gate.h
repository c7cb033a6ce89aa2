// SPDX-License-Identifier: Apache-2.0
// StepGate: a gate between the engine and its executor, with which a test decides how far the
// engine gets while clients act.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "tests/testing/engine/fake_executor.h"

namespace diffserve::testing {

// Thread-safe. Steps pass in the order of their arrival.
class StepGate {
 public:
  enum class State { kOpen, kClosed };
  explicit StepGate(State state) : open_(state == State::kOpen) {}

  // The executor's side: returns when the step may pass.
  void Pass();

  // The test's side.
  void Open();
  // Holds all steps that arrive from now on.
  void Close();
  // Lets `steps` more steps pass through the closed gate, now if they wait or else when they
  // arrive.
  void Allow(int steps);
  // Waits until a step waits at the closed gate.
  void WaitForArrival();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_;
  int64_t arrived_ = 0;
  int64_t allowed_ = 0;  // while closed, steps up to this number pass
};

// `options` with the gate before the caller's own on_collect. `gate` outlives the executor.
FakeExecutor::Options WithGate(FakeExecutor::Options options, StepGate& gate);

// Wraps any executor; its launches pass a gate that outlives it.
class GatedExecutor : public Executor {
 public:
  GatedExecutor(std::unique_ptr<Executor> executor, StepGate& gate)
      : executor_(std::move(executor)), gate_(gate) {}

  int depth() const override { return executor_->depth(); }
  void Launch(const StepPlan& plan) override;
  StepResult Collect() override { return executor_->Collect(); }

 private:
  const std::unique_ptr<Executor> executor_;
  StepGate& gate_;
};

}  // namespace diffserve::testing
