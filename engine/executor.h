// Executor: runs a planned step on a device. The real one is engine/model_executor.h; tests use
// FakeExecutor, whose tokens are a hash of the sequence's tokens. Owned and called by the engine
// thread alone.
#pragma once

#include "engine/step_plan.h"

namespace diffserve {

class Executor {
 public:
  // May come while launched steps are not collected: after a failure.
  virtual ~Executor() = default;
  // How many steps may be launched and not collected. With 1, Launch and Collect alternate and
  // every planned token is known. With 2, a step is launched behind the one that runs, and the
  // executor itself puts in what that one draws (kDrawnByStepBefore). Steps run one after the other
  // in the order of their launch, each seeing all that the ones before it wrote. A result may be
  // dropped: the sequence had ended before.
  virtual int depth() const { return 1; }
  // Does not wait for the steps before, and keeps nothing of the plan, which is a view. What a
  // sequence is and has drawn stands in each of its plans, so an executor knows no sequence beyond
  // the steps that are launched.
  virtual void Launch(const StepPlan& plan) = 0;
  // Waits for the oldest launched step.
  virtual StepResult Collect() = 0;
};

}  // namespace diffserve
