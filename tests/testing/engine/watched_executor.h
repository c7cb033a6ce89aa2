// SPDX-License-Identifier: Apache-2.0
// WatchedExecutor: a FakeExecutor that reports each call before it executes it.
#pragma once

#include <functional>
#include <utility>

#include "tests/testing/engine/fake_executor.h"

namespace diffserve::testing {

class WatchedExecutor : public Executor {
 public:
  WatchedExecutor(FakeExecutor fake, std::function<void(const StepPlan&)> on_launch,
                  std::function<void()> on_collect)
      : fake_(std::move(fake)),
        on_launch_(std::move(on_launch)),
        on_collect_(std::move(on_collect)) {}

  FakeExecutor& fake() { return fake_; }
  int depth() const override { return fake_.depth(); }
  void Launch(const StepPlan& plan) override {
    on_launch_(plan);
    fake_.Launch(plan);
  }
  StepResult Collect() override {
    on_collect_();
    return fake_.Collect();
  }

 private:
  FakeExecutor fake_;
  const std::function<void(const StepPlan&)> on_launch_;
  const std::function<void()> on_collect_;
};

}  // namespace diffserve::testing
