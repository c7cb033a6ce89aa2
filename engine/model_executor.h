// ModelExecutor: the real Executor, on every device. It turns a StepPlan into a Batch, has the
// model run it, and gives the rows that come back to their sequences. It owns the model, the KV
// pages and a copy of each running request. Used by the engine thread, which is worker 0 of the
// CPU's pool. What a device fails at is thrown as DeviceError.
#pragma once

#include <deque>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "engine/executor.h"
#include "models/model.h"

namespace diffserve {

class DeviceError : public std::runtime_error {
 public:
  explicit DeviceError(const Status& status) : std::runtime_error(status.message()) {}
};

class ModelExecutor : public Executor {
 public:
  ModelExecutor(std::unique_ptr<Model> model, KvCache kv);

  int depth() const override { return model_->steps_in_flight_max(); }
  void Begin(const Request& request) override;
  void End(RequestId request) override;
  void Launch(const StepPlan& plan) override;
  StepResult Collect() override;

 private:
  // What one row of logits is wanted for.
  struct LogitUse {
    size_t sequence = 0;  // index into the plan
    bool scores = false;  // a prompt token; else it draws
    SampleTask row;
  };
  struct LaunchedStep {
    std::vector<RequestId> requests;  // in the plan's order
    std::vector<LogitUse> uses;
  };

  SampleTask Pack(const PlannedSequence& planned, const Request& request, size_t position,
                  Batch& batch) const;

  KvCache kv_;
  std::unique_ptr<Model> model_;  // its end waits for the steps that still use the pages
  std::unordered_map<RequestId, Request> requests_;
  std::unordered_map<RequestId, int32_t> drawn_;  // by the last launched step: entry of its sample
                                                  // rows
  std::deque<LaunchedStep> launched_;
};

}  // namespace diffserve
