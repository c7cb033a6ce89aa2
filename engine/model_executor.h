// SPDX-License-Identifier: Apache-2.0
// ModelExecutor: the real Executor, on every device. It turns a StepPlan into a Batch, runs the
// model on it, and returns the results by sequence. It owns the model and the KV pages. Used by the
// engine thread, which is worker 0 of the CPU's pool. A device failure is thrown as DeviceError.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "engine/device_error.h"
#include "engine/draft_runner.h"
#include "engine/draw_masks.h"
#include "engine/executor.h"
#include "models/model.h"

namespace diffserve {

class ModelExecutor : public Executor {
 public:
  // `pool` fills the masks of several constrained sequences in parallel; it may be nullptr and
  // outlives the executor. `draft`: nullptr if there is no draft model.
  ModelExecutor(std::unique_ptr<Model> model, KvCache kv, ThreadPool* pool = nullptr,
                std::unique_ptr<DraftRunner> draft = nullptr);

  int depth() const override { return model_->steps_in_flight_max(); }
  void Launch(const StepPlan& plan) override;
  StepResult Collect() override;
  double draft_seconds() const override { return draft_ == nullptr ? 0 : draft_->seconds(); }

 private:
  struct LaunchedStep {
    size_t num_sequences = 0;
    std::vector<std::vector<int32_t>> guesses;      // [sequences] the draft model's; empty: none
    std::vector<size_t> owners;                     // [rows of logits] index into the plan
    std::vector<SampleTask> rows;                   // [rows of logits] how to sample it
    std::vector<std::pair<size_t, Status>> errors;  // constraint errors, by index into the plan
    std::vector<std::pair<size_t, std::shared_ptr<SequenceObserver>>> observers;  // likewise
  };

  struct DrawnRow {
    RequestId request = 0;
    int32_t row = 0;  // of logits
  };

  void LaunchModel(const StepPlan& plan);
  int32_t RowDrawnFor(RequestId request) const;
  SampleTask PackDraw(const PlannedSequence& planned, const DrawMasks::Entry& masks, int position,
                      Batch& batch) const;

  KvCache kv_;
  std::unique_ptr<Model> model_;  // its destructor waits for the steps that still use the pages
  std::unique_ptr<DraftRunner> draft_;
  DrawMasks masks_;              // of the last launched step
  std::vector<DrawnRow> drawn_;  // of the last launched step, by request
  std::deque<LaunchedStep> launched_;
};

}  // namespace diffserve
