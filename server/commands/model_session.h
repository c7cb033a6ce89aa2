// ModelSession: what every command that runs a model starts with: the device, the sizes that fit
// it, the thread pool, the weights and the KV pages. PlanSession reads no weights, so a model that
// does not fit is refused at once, by every command in the same words.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "engine/executor.h"
#include "engine/options.h"
#include "kernels/base/thread_pool.h"
#include "models/model.h"
#include "server/options.h"

namespace diffserve {

// Tokens that the KV pages must and should hold.
struct KvDemand {
  int64_t least_tokens = 0;
  int64_t wanted_tokens = 0;
};

struct SessionPlan {
  ModelSummary summary;
  Device device = Device::kCpu;
  std::string device_name;  // "cpu", or what the driver calls the GPU
  CpuIsa isa = CpuIsa::kAvx2;
  KvFormat layout;
  int max_model_len = 0;
  int num_pages = 0;       // on a GPU an estimate until the model is loaded
  size_t page_bytes = 0;   // of one page id, all layers and groups
  int64_t free_bytes = 0;  // of the device's memory, before anything was loaded
  KvDemand demand;
  size_t kv_bytes() const { return page_bytes * static_cast<size_t>(num_pages); }
  size_t kv_bytes_per_token() const { return page_bytes / static_cast<size_t>(layout.page_size); }
};

// The model's length under --max-model-len. Error: longer than the model's positions.
Result<int> MaxModelLen(const Options& options, const ModelConfig& config);

// What a server needs: one sequence of full length at the least, --max-num-seqs sequences of up to
// 256 tokens if memory allows.
KvDemand ServeDemand(const Options& options, int max_model_len);

// `demand` is asked with the model's length under the options.
using DemandFunction = std::function<KvDemand(const Options& options, int max_model_len)>;
Result<SessionPlan> PlanSession(const Options& options, const DemandFunction& demand);

class ModelSession {
 public:
  static Result<std::unique_ptr<ModelSession>> Load(const Options& options, SessionPlan plan);

  const SessionPlan& plan() const { return plan_; }
  ThreadPool& pool() { return pool_; }
  // REQUIRES: MakeExecutor has not been called.
  Model& model() { return *model_; }
  KvCache& kv() { return *kv_; }
  // Hands the model and its pages to an executor that the engine can own. The session must outlive
  // it. Once.
  std::unique_ptr<Executor> MakeExecutor();
  EngineOptions MakeEngineOptions(const Options& options) const;

 private:
  ModelSession(SessionPlan plan, int threads)
      : plan_(std::move(plan)), pool_({.num_threads = threads}) {}

  SessionPlan plan_;
  ThreadPool pool_;
  std::optional<KvCache> kv_;
  std::unique_ptr<Model> model_;  // its end waits for the steps that still use the pages
};

}  // namespace diffserve
