// SPDX-License-Identifier: Apache-2.0
// Executor: runs a planned step on a device. The real one is engine/model_executor.h; tests use
// FakeExecutor, whose tokens are a hash of the sequence's tokens. Owned by the engine thread, which
// makes all calls.
#pragma once

#include "engine/policy/step_plan.h"

namespace diffserve {

class Executor {
 public:
  // After a failure, launched steps may still be uncollected.
  virtual ~Executor() = default;
  // How many steps may be launched and not collected. With 1, Launch and Collect alternate and
  // every planned token is known. With 2, a step is launched while the one before it runs, and the
  // executor itself fills in the tokens that the earlier step draws (kDrawnByStepBefore). Steps run
  // in launch order, and each sees all that the earlier ones wrote. A result may be dropped if its
  // sequence has ended in the meantime.
  virtual int depth() const { return 1; }
  // Does not wait for earlier steps and keeps no reference to the plan, which is a view. Every plan
  // carries the full state of its sequences, so an executor keeps nothing about a sequence beyond
  // the launched steps.
  virtual void Launch(const StepPlan& plan) = 0;
  // Waits for the oldest launched step and returns its result.
  virtual StepResult Collect() = 0;
  // What the draft model took of the last Launch; 0 if it had nothing to do.
  virtual double draft_seconds() const { return 0; }
};

}  // namespace diffserve
