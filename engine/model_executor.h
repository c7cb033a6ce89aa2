// ModelExecutor: the real Executor, on every device. It turns a StepPlan into a Batch, has the
// model run it, and gives what comes back to the sequences. It owns the model and the KV pages.
// Used by the engine thread, which is worker 0 of the CPU's pool. What a device fails at is thrown
// as DeviceError.
#pragma once

#include <deque>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/draw_masks.h"
#include "engine/executor.h"
#include "models/model.h"

namespace diffserve {

class DeviceError : public std::runtime_error {
 public:
  explicit DeviceError(const Status& status) : std::runtime_error(status.message()) {}
};

class ModelExecutor : public Executor {
 public:
  // `pool`: nullptr, or what fills the masks of several constrained sequences at once; it outlives
  // the executor.
  ModelExecutor(std::unique_ptr<Model> model, KvCache kv, ThreadPool* pool = nullptr);

  int depth() const override { return model_->steps_in_flight_max(); }
  void Launch(const StepPlan& plan) override;
  StepResult Collect() override;

 private:
  struct LaunchedStep {
    size_t num_sequences = 0;
    std::vector<size_t> owners;                     // of each row of logits: index into the plan
    std::vector<SampleTask> rows;                   // likewise: what was asked of it
    std::vector<std::pair<size_t, Status>> errors;  // of constraints, by index into the plan
    // Index into the plan, and what pools that sequence's states.
    std::vector<std::pair<size_t, std::shared_ptr<HiddenStatePool>>> pools;
  };

  SampleTask PackDraw(const PlannedSequence& planned, const DrawMasks::Entry& masks, int position,
                      Batch& batch) const;

  KvCache kv_;
  std::unique_ptr<Model> model_;  // its end waits for the steps that still use the pages
  DrawMasks masks_;               // of the last launched step
  std::unordered_map<RequestId, int32_t> drawn_;  // by the last launched step: which of its rows
                                                  // of logits draws for the request
  std::deque<LaunchedStep> launched_;
};

}  // namespace diffserve
