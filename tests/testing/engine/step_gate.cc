// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/engine/step_gate.h"

namespace diffserve::testing {

void StepGate::Pass() {
  std::unique_lock lock(mutex_);
  const int64_t number = ++arrived_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return open_ || number <= allowed_; });
}

void StepGate::Open() {
  std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

void StepGate::Close() {
  std::lock_guard lock(mutex_);
  if (std::exchange(open_, false)) allowed_ = arrived_;
}

void StepGate::Allow(int steps) {
  std::lock_guard lock(mutex_);
  allowed_ += steps;
  changed_.notify_all();
}

void StepGate::WaitForArrival() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return arrived_ > allowed_; });
}

FakeExecutor::Options WithGate(FakeExecutor::Options options, StepGate& gate) {
  options.on_collect = [&gate, then = std::move(options.on_collect)](uint64_t step) {
    gate.Pass();
    if (then) then(step);
  };
  return options;
}

void GatedExecutor::Launch(const StepPlan& plan) {
  gate_.Pass();
  executor_->Launch(plan);
}

}  // namespace diffserve::testing
