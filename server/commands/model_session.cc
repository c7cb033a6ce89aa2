#include "server/commands/model_session.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "engine/model_executor.h"
#include "kernels/base/cuda/device.h"
#include "kernels/base/log.h"
#include "kernels/base/machine_memory.h"

namespace diffserve {
namespace {

// Of the memory that is free once the weights are loaded: what pages take unasked, and what they
// may take at most. A GPU is there for the model alone, so its pages take the most at once.
constexpr double kDefaultKvShare = 0.4;
constexpr double kLargestKvShare = 0.9;
constexpr int kCpuPageSize = 16;
constexpr int kWantedTokensPerSequence = 256;

std::string MiB(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MiB", bytes / (1 << 20));
  return text;
}

ModelOptions ToModelOptions(const Options& options, Device device, CpuIsa isa) {
  ModelOptions model;
  model.model_dir = options.model_dir;
  model.device = device;
  model.limits.num_rows = std::max(
      {options.max_num_batched_tokens, options.chunk, options.max_num_seqs});
  model.limits.num_sequences = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  if (options.command == "bench") {
    model.limits.num_sequences = std::max(model.limits.num_sequences,
                                          *std::ranges::max_element(options.bench_batch));
  }
  model.limits.max_model_len = options.max_model_len;
  model.batch_invariant = options.batch_invariant;
  if (options.dtype) model.weight_format = WeightFormatOf(*options.dtype);
  model.dummy_weights = options.dummy_weights;
  model.seed = options.seed;
  model.isa = isa;
  return model;
}

int64_t PagesFor(int64_t tokens, int page_size) { return (tokens + page_size - 1) / page_size; }

// Bytes for KV pages that the options allow, `free` being what the weights leave.
Result<double> KvBudget(const Options& options, Device device, double free, double least_bytes) {
  if (options.kv_cache_memory.empty()) {
    if (device == Device::kCuda) return free * kLargestKvShare;
    return std::max(free * kDefaultKvShare, std::min(least_bytes, free * kLargestKvShare));
  }
  Result<MemorySize> size = ParseMemorySize(options.kv_cache_memory);
  if (!size.ok()) return size.status();
  // CUDA loads kernels and graphs as they are first used.
  const double usable = device == Device::kCuda ? free * kLargestKvShare : free;
  const double wanted = size->share > 0 ? std::min(size->share * free, usable)
                                        : static_cast<double>(size->bytes);
  if (wanted > usable) {
    return InvalidArgument("--kv-cache-memory is " + MiB(wanted) + ", allowed: at most " +
                               (device == Device::kCuda ? "0.9 of " : "") + "the " + MiB(free) +
                               " that the weights leave free",
                           "--kv-cache-memory");
  }
  return wanted;
}

// `free` is what the weights, and on a GPU the largest step, leave.
Result<int> ChoosePages(const Options& options, const SessionPlan& plan, double free) {
  const double page_bytes = static_cast<double>(plan.page_bytes);
  if (free <= 0) {
    const std::string step = " and the largest step " +
                             MiB(static_cast<double>(plan.summary.device_step_bytes)) +
                             " (--max-num-batched-tokens, --max-num-seqs)";
    return InvalidArgument(options.model_dir + ": the weights need " +
                           MiB(static_cast<double>(plan.summary.memory_bytes)) +
                           (plan.device == Device::kCuda ? step : "") +
                           ", free: " + MiB(static_cast<double>(plan.free_bytes)));
  }
  const int64_t least = std::max<int64_t>(
      1, PagesFor(plan.demand.least_tokens, plan.layout.page_size));
  const double least_bytes = static_cast<double>(least) * page_bytes;
  const Result<double> budget = KvBudget(options, plan.device, free, least_bytes);
  if (!budget.ok()) return budget.status();
  if (budget.value() < least_bytes) {
    return InvalidArgument(
        "one sequence of " + std::to_string(plan.demand.least_tokens) + " tokens needs " +
            MiB(least_bytes) + " of KV pages, allowed: " + MiB(budget.value()) + " of " +
            MiB(free) + " free; lower --max-model-len or raise --kv-cache-memory",
        "--max-model-len");
  }
  const int64_t fitting = static_cast<int64_t>(budget.value() / page_bytes);
  // An explicit amount is used in full, and so is a GPU by a server.
  const bool is_server = options.command == "serve" || options.command == "inspect";
  const bool in_full = !options.kv_cache_memory.empty() ||
                       (plan.device == Device::kCuda && is_server);
  const int64_t wanted = in_full ? fitting
                                 : PagesFor(plan.demand.wanted_tokens, plan.layout.page_size);
  return static_cast<int>(std::min<int64_t>(std::max(least, std::min(fitting, wanted)),
                                            std::numeric_limits<int>::max() / 2));
}

// Fills plan.device, device_name and summary. `auto` takes a GPU if there is one that has kernels
// for the model.
Status ChooseDevice(const Options& options, SessionPlan* plan) {
  const bool asked = options.device == "cuda";
  if (asked || (options.device == "auto" && cuda::IsCompiledIn())) {
    const Result<cuda::DeviceInfo> gpu = cuda::OpenDevice(0);
    if (!gpu.ok() && asked)
      return Status(gpu.status().code(), "--device cuda: " + gpu.status().message(), "--device");
    if (!gpu.ok()) Log(LogLevel::kInfo, "gpu_not_used", {{"reason", gpu.status().message()}});
    if (gpu.ok()) {
      Result<ModelSummary> summary = InspectModel(
          ToModelOptions(options, Device::kCuda, plan->isa));
      if (summary.ok()) {
        plan->device = Device::kCuda;
        plan->device_name = cuda::Describe(*gpu);
        plan->summary = std::move(*summary);
        return Status();
      }
      if (asked) return summary.status();
      Log(LogLevel::kWarning, "gpu_not_used",
          {{"gpu", gpu->name}, {"reason", summary.status().message()}});
    }
  }
  Result<ModelSummary> summary = InspectModel(ToModelOptions(options, Device::kCpu, plan->isa));
  if (!summary.ok()) return summary.status();
  plan->device_name = "cpu";
  plan->summary = std::move(*summary);
  return Status();
}

// The options with what the device decides filled in.
Result<Options> WithPages(Options options, const SessionPlan& plan) {
  const bool on_gpu = plan.device == Device::kCuda;
  if (on_gpu && options.page_size != 0 && options.page_size != cuda::kPageSize) {
    return InvalidArgument("--page-size is " + std::to_string(options.page_size) +
                               ", allowed on a GPU: " + std::to_string(cuda::kPageSize) +
                               " (or --device cpu)",
                           "--page-size");
  }
  if (on_gpu && options.kv_cache_dtype.value_or(DType::kBFloat16) != DType::kBFloat16) {
    return InvalidArgument("--kv-cache-dtype is " + std::string(NameOf(*options.kv_cache_dtype)) +
                               ", allowed on a GPU: auto, bfloat16 " + "(or --device cpu)",
                           "--kv-cache-dtype");
  }
  if (options.page_size == 0) options.page_size = on_gpu ? cuda::kPageSize : kCpuPageSize;
  return options;
}

}  // namespace

Result<int> MaxModelLen(const Options& options, const ModelConfig& config) {
  if (options.max_model_len == 0) return config.max_positions;
  if (options.max_model_len <= config.max_positions) return options.max_model_len;
  return InvalidArgument("--max-model-len is " + std::to_string(options.max_model_len) +
                             ", allowed: 1.." + std::to_string(config.max_positions) +
                             " (max_position_embeddings of " + options.model_dir + "/config.json)",
                         "--max-model-len");
}

KvDemand ServeDemand(const Options& options, int max_model_len) {
  const int64_t per_sequence = PagesFor(std::min(max_model_len, kWantedTokensPerSequence),
                                        options.page_size) *
                               options.page_size;
  return {max_model_len, std::max<int64_t>(max_model_len, per_sequence * options.max_num_seqs)};
}

Result<SessionPlan> PlanSession(const Options& options, const DemandFunction& demand) {
  Result<CpuIsa> isa = ChooseCpuIsa(options.cpu_isa);
  if (!isa.ok()) return isa.status();
  SessionPlan plan;
  plan.isa = *isa;
  DS_RETURN_IF_ERROR(ChooseDevice(options, &plan));
  const Result<Options> resolved = WithPages(options, plan);
  if (!resolved.ok()) return resolved.status();
  const ModelSummary& summary = plan.summary;
  const Result<int> max_model_len = MaxModelLen(options, summary.config);
  if (!max_model_len.ok()) return max_model_len.status();

  plan.max_model_len = max_model_len.value();
  plan.layout = KvFormat::Of(summary.config.attention, resolved->page_size,
                             options.kv_cache_dtype.value_or(DTypeOf(summary.weight_format)));
  plan.page_bytes = KvCache::BytesPerPage(plan.layout, summary.config.num_layers);
  plan.demand = demand(*resolved, plan.max_model_len);
  double free = -static_cast<double>(summary.memory_bytes);
  if (plan.device == Device::kCuda) {
    const Result<cuda::DeviceMemory> memory = cuda::MemoryOfDevice();
    if (!memory.ok()) return memory.status();
    plan.free_bytes = static_cast<int64_t>(memory->free_bytes);
    free -= static_cast<double>(summary.device_step_bytes);
  } else {
    plan.free_bytes = FreeMemoryBytes();
  }
  const Result<int> pages = ChoosePages(options, plan, free + static_cast<double>(plan.free_bytes));
  if (!pages.ok()) return pages.status();
  plan.num_pages = pages.value();
  return plan;
}

Result<std::unique_ptr<ModelSession>> ModelSession::Load(const Options& options, SessionPlan plan) {
  std::unique_ptr<ModelSession> session(new ModelSession(std::move(plan), options.threads));
  SessionPlan& loaded = session->plan_;
  Result<std::unique_ptr<Model>> model = Model::Load(
      ToModelOptions(options, loaded.device, loaded.isa), session->pool_);
  if (!model.ok()) return model.status();
  session->model_ = std::move(model).value();
  if (loaded.device == Device::kCuda) {
    // The weights and all memory that steps need are taken, and a step has run.
    const Result<cuda::DeviceMemory> memory = cuda::MemoryOfDevice();
    if (!memory.ok()) return memory.status();
    const Result<int> pages = ChoosePages(options, loaded, static_cast<double>(memory->free_bytes));
    if (!pages.ok()) return pages.status();
    loaded.num_pages = pages.value();
  }
  Result<KvCache> kv = session->model_->MakeKvCache(loaded.layout, loaded.num_pages);
  if (!kv.ok()) return kv.status();
  session->kv_ = std::move(kv).value();
  return session;
}

std::unique_ptr<Executor> ModelSession::MakeExecutor() {
  return std::make_unique<ModelExecutor>(std::move(model_), std::move(*kv_));
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
