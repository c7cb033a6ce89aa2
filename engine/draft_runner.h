// SPDX-License-Identifier: Apache-2.0
// DraftRunner: runs the draft model's part of a planned step. It owns the draft model and its KV
// pages, whose ids are the model's. Owned by the ModelExecutor, on the engine thread. A device
// failure is thrown as DeviceError.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/policy/step_plan.h"
#include "models/model.h"

namespace diffserve {

class DraftRunner {
 public:
  // REQUIRES: layers without states; pages for all page ids.
  DraftRunner(std::unique_ptr<Model> model, KvCache kv);

  // Computes the plan's DraftWork. Returns the guesses of each planned sequence, in its order.
  std::vector<std::vector<int32_t>> Run(const StepPlan& plan);
  // What the last Run took; 0 if the draft model had nothing to do.
  double seconds() const { return seconds_; }

 private:
  void RunPass(const StepPlan& plan, int pass, std::vector<std::vector<int32_t>>& guesses);

  KvCache kv_;
  std::unique_ptr<Model> model_;
  double seconds_ = 0;
};

}  // namespace diffserve
