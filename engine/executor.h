// Executor: runs a planned step on a device. The real one is engine/model_executor.h; tests use FakeExecutor, whose tokens are a
// hash of the sequence's tokens. Owned and called by the engine thread alone.
#pragma once

#include "engine/step_plan.h"

namespace diffserve {

class Executor {
 public:
  virtual ~Executor() = default;
  // A sequence's first step is preceded by Begin; End frees what the executor holds for it (sampling state).
  virtual void Begin(const Request& request) = 0;
  virtual void End(RequestId request) = 0;
  virtual void Launch(const StepPlan& plan) = 0;
  // Waits for the launched step.
  virtual StepResult Collect() = 0;
};

}  // namespace diffserve
