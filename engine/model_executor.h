// ModelExecutor: the real Executor on the CPU. It turns a StepPlan into a Batch, runs the model, and samples. It owns the model, the
// KV pages and a copy of each running request. Used by the engine thread, which is worker 0 of the pool.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/executor.h"
#include "kernels/base/thread_pool.h"
#include "models/model.h"

namespace diffserve {

class ModelExecutor : public Executor {
 public:
  ModelExecutor(std::unique_ptr<Model> model, KvCache kv, ThreadPool& pool);

  void Begin(const Request& request) override;
  void End(RequestId request) override;
  void Launch(const StepPlan& plan) override;
  StepResult Collect() override;

  const Model& model() const { return *model_; }

 private:
  // One logit row of the step and what it is wanted for.
  struct LogitUse {
    size_t sequence = 0;         // index into the plan
    int32_t prompt_token = -1;   // >= 0: score this prompt token; -1: draw the next token
    uint64_t position = 0;       // of the token to be drawn
  };

  void Use(const LogitUse& use, std::span<const float> logits, const StepPlan& plan, SampleResult& out) const;

  std::unique_ptr<Model> model_;
  KvCache kv_;
  ThreadPool& pool_;
  std::unordered_map<RequestId, Request> requests_;
  StepResult result_;
};

}  // namespace diffserve
