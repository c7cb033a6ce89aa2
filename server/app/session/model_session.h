// SPDX-License-Identifier: Apache-2.0
// ModelSession: the setup of every command that runs a model: the device, the sizes that fit it,
// the thread pool, the weights and the KV pages. PlanSession reads no weights, so a model that does
// not fit is refused at once, with the same message by every command.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "engine/contract/options.h"
#include "engine/executor.h"
#include "kernels/base/thread_pool.h"
#include "models/model.h"
#include "server/app/options.h"
#include "server/app/session/draft_plan.h"
#include "server/app/session/layout_plan.h"
#include "server/app/session/memory_plan.h"
#include "server/app/session/progress_line.h"
#include "server/app/session/weights_plan.h"

namespace diffserve {

// A command's own needs, in addition to the common flags.
struct SessionNeeds {
  std::function<KvDemand(int page_size, int max_model_len)> kv;
  int step_tokens = 0;         // minimum per step
  int step_sequences = 0;      // minimum per step
  bool fills_the_gpu = false;  // pages take the maximum share of a GPU's memory
  // Number of sequences that run without an engine, each with a state and without snapshots; 0: an
  // engine runs.
  int sequences = 0;
  // Layers with a window have page ids of their own.
  bool has_window_pages = true;
  // The plan is only shown: it may take more memory than there is.
  bool is_estimate = false;
};

// The needs of a server: at least one sequence of full length, and --max-num-seqs sequences of up
// to 256 tokens if memory allows.
SessionNeeds ServerNeeds(const EngineOptions& engine);

// The memory of a device before anything is loaded.
struct DeviceRoom {
  int64_t free_bytes = 0;  // within gpu_share
  double gpu_share = 0;    // --gpu-memory-utilization; 0: no limit
};

// Each step is a value that follows from those before: weights, lengths, layout, pages.
struct SessionPlan : WeightsPlan, LayoutPlan {
  SessionNeeds needs;
  EngineOptions engine;  // as it will run; on a GPU num_pages is an estimate until the model is
                         // loaded
  std::optional<DraftPlan> draft;
  DeviceRoom room;
  int num_threads = 0;              // of the CPU backend
  bool may_stop_proposing = false;  // --speculative auto: if states need the memory
  // For one page id, with the draft model's part.
  size_t pool_page_bytes() const { return page_bytes + (draft ? draft->page_bytes : 0); }
  size_t kv_bytes() const { return pool_page_bytes() * static_cast<size_t>(engine.num_pages); }
  // Resident, of both models.
  size_t weight_memory_bytes() const {
    return summary.memory_bytes + (draft ? draft->summary.memory_bytes : 0);
  }
  // Bytes of a sequence's state.
  size_t slot_bytes() const {
    return static_cast<size_t>(summary.config.state_floats()) * sizeof(float);
  }
  LayoutBytes layout_bytes() const { return {pool_page_bytes(), window_page_bytes, slot_bytes()}; }
  // Bytes of a snapshot of it, with the windows before.
  size_t snapshot_bytes() const {
    return slot_bytes() + window_page_bytes * static_cast<size_t>(engine.WindowPagesPerSequence());
  }
  // Bytes that sequences and snapshots keep besides the pages of their tokens.
  size_t state_bytes() const {
    return slot_bytes() * static_cast<size_t>(engine.num_state_slots) +
           window_page_bytes * static_cast<size_t>(engine.num_window_pages);
  }
  size_t kv_bytes_per_token() const { return page_bytes / static_cast<size_t>(engine.page_size); }
  int64_t PagesFor(int64_t tokens) const { return diffserve::PagesFor(tokens, engine.page_size); }
};

// Bytes of the weights and of a server's largest step on a GPU, without asking CUDA anything.
Result<int64_t> EstimateGpuBytes(const SessionOptions& options);

Result<SessionPlan> PlanSession(const SessionOptions& options, const SessionNeeds& needs);

// Wraps the executor of serve, chat and run-batch before the engine gets it. Only test programs use
// it, to hold steps.
using ExecutorWrapper = std::function<std::unique_ptr<Executor>(std::unique_ptr<Executor>)>;

class ModelSession {
 public:
  // A slow load is reported in `form`.
  static Result<std::unique_ptr<ModelSession>> Load(
      const SessionOptions& options, SessionPlan plan,
      ProgressLine::Form form = ProgressLine::Form::kPlain);

  const SessionPlan& plan() const { return plan_; }
  ThreadPool& pool() { return pool_; }
  // REQUIRES: MakeExecutor has not been called.
  Model& model() { return *model_; }
  KvCache& kv() { return *kv_; }
  // Moves the model and its pages into an executor that the engine can own. The session must
  // outlive it. Call once.
  std::unique_ptr<Executor> MakeExecutor();

 private:
  ModelSession(SessionPlan plan, int threads)
      : plan_(std::move(plan)), pool_({.num_threads = threads}) {}

  SessionPlan plan_;
  ThreadPool pool_;
  std::optional<KvCache> kv_;
  std::unique_ptr<Model> model_;  // its end waits for the steps that still use the pages
  std::unique_ptr<DraftRunner> draft_;
};

}  // namespace diffserve
