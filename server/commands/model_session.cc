#include "server/commands/model_session.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "engine/model_executor.h"
#include "server/commands/machine_memory.h"

namespace diffserve {
namespace {

// Of the memory that is free once the weights are loaded: what pages take unasked, and what they may take at most.
constexpr double kDefaultKvShare = 0.4;
constexpr double kLargestKvShare = 0.9;
constexpr int kWantedTokensPerSequence = 256;

std::string MiB(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MiB", bytes / (1 << 20));
  return text;
}

ModelOptions ToModelOptions(const Options& options, CpuIsa isa) {
  ModelOptions model;
  model.model_dir = options.model_dir;
  model.dtype = options.dtype;
  model.dummy_weights = options.dummy_weights;
  model.seed = options.seed;
  model.isa = isa;
  return model;
}

int64_t PagesFor(int64_t tokens, int page_size) { return (tokens + page_size - 1) / page_size; }

// Bytes for KV pages that the options allow, `free` being what the weights leave.
Result<double> KvBudget(const Options& options, double free, double least_bytes) {
  if (options.kv_cache_memory.empty()) return std::max(free * kDefaultKvShare, std::min(least_bytes, free * kLargestKvShare));
  Result<MemorySize> size = ParseMemorySize(options.kv_cache_memory);
  if (!size.ok()) return size.status();
  const double wanted = size->share > 0 ? size->share * free : static_cast<double>(size->bytes);
  if (size->share == 0 && wanted > free) {
    return InvalidArgument(
        "--kv-cache-memory is " + MiB(wanted) + ", allowed: at most the " + MiB(free) + " that the weights leave free",
        "--kv-cache-memory");
  }
  return wanted;
}

Result<int> ChoosePages(const Options& options, const SessionPlan& plan, const KvDemand& demand) {
  const double page_bytes = static_cast<double>(plan.page_bytes);
  const double free = static_cast<double>(plan.free_bytes) - static_cast<double>(plan.summary.memory_bytes);
  if (free <= 0) {
    return InvalidArgument(options.model_dir + ": the weights need " + MiB(static_cast<double>(plan.summary.memory_bytes)) +
                           ", free: " + MiB(static_cast<double>(plan.free_bytes)));
  }
  const int64_t least = std::max<int64_t>(1, PagesFor(demand.least_tokens, plan.layout.page_size));
  const double least_bytes = static_cast<double>(least) * page_bytes;
  const Result<double> budget = KvBudget(options, free, least_bytes);
  if (!budget.ok()) return budget.status();
  if (budget.value() < least_bytes) {
    return InvalidArgument("one sequence of " + std::to_string(demand.least_tokens) + " tokens needs " + MiB(least_bytes) +
                               " of KV pages, allowed: " + MiB(budget.value()) + " of " + MiB(free) +
                               " free; lower --max-model-len or raise --kv-cache-memory",
                           "--max-model-len");
  }
  const int64_t fitting = static_cast<int64_t>(budget.value() / page_bytes);
  // An explicit amount is used in full.
  const int64_t wanted = options.kv_cache_memory.empty() ? PagesFor(demand.wanted_tokens, plan.layout.page_size) : fitting;
  return static_cast<int>(std::min<int64_t>(std::max(least, std::min(fitting, wanted)), std::numeric_limits<int>::max() / 2));
}

}  // namespace

Result<int> MaxModelLen(const Options& options, const ModelConfig& config) {
  if (options.max_model_len == 0) return config.max_positions;
  if (options.max_model_len <= config.max_positions) return options.max_model_len;
  return InvalidArgument("--max-model-len is " + std::to_string(options.max_model_len) + ", allowed: 1.." +
                             std::to_string(config.max_positions) + " (max_position_embeddings of " + options.model_dir +
                             "/config.json)",
                         "--max-model-len");
}

KvDemand ServeDemand(const Options& options, int max_model_len) {
  const int64_t per_sequence = PagesFor(std::min(max_model_len, kWantedTokensPerSequence), options.page_size) * options.page_size;
  return {max_model_len, std::max<int64_t>(max_model_len, per_sequence * options.max_num_seqs)};
}

Result<SessionPlan> PlanSession(const Options& options, const DemandFunction& demand) {
  Result<CpuIsa> isa = ChooseCpuIsa(options.cpu_isa);
  if (!isa.ok()) return isa.status();
  Result<ModelSummary> summary = InspectModel(ToModelOptions(options, *isa));
  if (!summary.ok()) return summary.status();
  const Result<int> max_model_len = MaxModelLen(options, summary->config);
  if (!max_model_len.ok()) return max_model_len.status();

  SessionPlan plan;
  plan.isa = *isa;
  plan.max_model_len = max_model_len.value();
  plan.layout = PagedKvLayout::Of(summary->config.attention, options.page_size, options.kv_cache_dtype.value_or(summary->dtype));
  plan.page_bytes = KvCache::BytesPerPage(plan.layout, summary->config.num_layers);
  plan.free_bytes = FreeMemoryBytes();
  plan.summary = std::move(summary).value();
  const Result<int> pages = ChoosePages(options, plan, demand(options, plan.max_model_len));
  if (!pages.ok()) return pages.status();
  plan.num_pages = pages.value();
  return plan;
}

Result<std::unique_ptr<ModelSession>> ModelSession::Load(const Options& options, SessionPlan plan) {
  const CpuIsa isa = plan.isa;
  std::unique_ptr<ModelSession> session(new ModelSession(std::move(plan), options.threads));
  Result<std::unique_ptr<Model>> model = Model::Load(ToModelOptions(options, isa), session->pool_);
  if (!model.ok()) return model.status();
  session->model_ = std::move(model).value();
  return session;
}

KvCache ModelSession::MakeKvCache() const { return KvCache(plan_.layout, plan_.summary.config.num_layers, plan_.num_pages); }

std::unique_ptr<Executor> ModelSession::MakeExecutor() {
  return std::make_unique<ModelExecutor>(std::move(model_), MakeKvCache(), pool_);
}

EngineOptions ModelSession::MakeEngineOptions(const Options& options) const {
  EngineOptions engine;
  engine.page_size = plan_.layout.page_size;
  engine.num_pages = plan_.num_pages;
  engine.max_model_len = plan_.max_model_len;
  engine.max_num_seqs = options.max_num_seqs;
  engine.max_num_batched_tokens = options.max_num_batched_tokens;
  engine.enable_prefix_caching = options.enable_prefix_caching;
  engine.max_waiting_requests = options.max_waiting_requests;
  engine.max_waiting_tokens = options.max_waiting_tokens;
  return engine;
}

}  // namespace diffserve
