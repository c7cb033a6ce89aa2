// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/model_session.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>

#include "engine/model_executor.h"
#include "kernels/attention/diff_attention.h"
#include "kernels/base/cuda/device.h"
#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "kernels/process/machine_memory.h"
#include "models/config_reader.h"
#include "server/app/session/device_pages.h"
#include "server/app/session/device_plan.h"

namespace diffserve {
namespace {

constexpr int kCpuPageSize = 16;
constexpr int kWantedTokensPerSequence = 256;

// For the CPU: ChooseDevice may take a GPU.
ModelOptions MakeModelOptions(const SessionOptions& options, const SessionNeeds& needs,
                              CpuIsa isa) {
  const EngineOptions& engine = options.engine;
  ModelOptions model;
  model.model_dir = options.model_dir;
  model.limits.num_tokens = std::max(
      {engine.max_num_batched_tokens, needs.step_tokens, engine.max_num_seqs});
  model.limits.num_sequences = std::max(
      std::min(engine.max_num_seqs, engine.max_num_batched_tokens), needs.step_sequences);
  model.limits.max_model_len = engine.max_model_len;
  model.batch_invariant = options.batch_invariant;
  if (options.dtype) model.weight_format = WeightFormatOf(*options.dtype);
  model.linear_format = options.quantization;
  model.dummy_weights = options.dummy_weights;
  model.seed = options.seed;
  model.isa = isa;
  model.logit_quant = options.logit_quant;
  model.is_estimate = needs.is_estimate;
  return model;
}

// What made free_bytes less, for the end of a message.
std::string Limit(const SessionPlan& plan) {
  if (plan.gpu_share == 0) return "";
  char text[64];
  std::snprintf(text, sizeof(text), " within --gpu-memory-utilization %.3g", plan.gpu_share);
  return text;
}

// `free`: the memory that the weights, and on a GPU also the largest step, leave.
Status CheckWeightsFit(const SessionPlan& plan, double free) {
  if (free > 0) return {};
  const std::string step = " and the largest step " +
                           MiB(static_cast<double>(plan.summary.device_step_bytes)) +
                           " (--max-num-batched-tokens, --max-num-seqs)";
  return InvalidArgument(plan.model.model_dir + ": the weights need " +
                         MiB(static_cast<double>(plan.weight_memory_bytes())) +
                         (plan.draft ? " with the draft model's" : "") +
                         (plan.on_gpu() ? step : "") +
                         ", free: " + MiB(static_cast<double>(plan.free_bytes)) + Limit(plan) +
                         FormatAdvice(plan.model, static_cast<double>(plan.free_bytes)));
}

Result<MemoryPlan> PlanMemoryOf(const SessionPlan& plan, const MemorySize& asked, double free) {
  DS_RETURN_IF_ERROR(CheckWeightsFit(plan, free));
  const EngineOptions& engine = plan.engine;
  const MemoryDemand demand = {.on_gpu = plan.on_gpu(),
                               .free_bytes = free,
                               .asked = asked,
                               .engine = engine,
                               .layout = plan.layout_bytes(),
                               .kv = plan.needs.kv(engine.page_size, engine.max_model_len),
                               .sequences = plan.needs.sequences,
                               .fills_the_gpu = plan.needs.fills_the_gpu,
                               .may_stop_proposing = plan.may_stop_proposing};
  return PlanMemory(demand, [&plan](double bytes) {
    return FormatAdvice(plan.model, static_cast<double>(plan.free_bytes) - bytes);
  });
}

// Gives the engine the memory that was planned.
void SetMemory(const MemoryPlan& memory, EngineOptions* engine) {
  if (memory.stops_proposing) {
    engine->speculative_tokens = 0;
    engine->speculative_history_bytes = 0;
    Log(LogLevel::kInfo, "speculation_off",
        {{"reason", "the states that proposals go back to leave too little room for sequences"}});
  }
  if (memory.max_num_seqs != engine->max_num_seqs) {
    Log(LogLevel::kInfo, "fewer_sequences",
        {{"max_num_seqs", std::to_string(memory.max_num_seqs)},
         {"asked", std::to_string(engine->MaxRunning())},
         {"reason", "states and windows of more sequences do not fit half of the KV memory"}});
  }
  engine->max_num_seqs = memory.max_num_seqs;
  engine->num_pages = memory.num_pages;
  engine->num_state_slots = memory.num_state_slots;
  engine->num_window_pages = memory.num_window_pages;
}

// Proposals follow known tokens. A GPU's steps are planned before these are known, so on a GPU they
// are made only if a flag asks for them.
Status ChooseSpeculation(const SessionOptions& options, SessionPlan* plan) {
  if (options.speculation == Speculation::kOff) return {};
  const bool is_asked = options.speculation == Speculation::kPromptLookup;
  if ((plan->on_gpu() && !is_asked) || plan->needs.sequences > 0) return {};
  plan->engine.speculative_tokens = EngineOptions::kVerifiedRowsMax - 1;
  plan->may_stop_proposing = !is_asked;
  return {};
}

Status ChooseHistory(const MemorySize& asked, SessionPlan* plan) {
  constexpr int64_t kMin = int64_t{1} << 20;
  if (asked.text.empty()) return {};
  if (asked.bytes < kMin) {
    return NotAllowed("--speculative-history is " + asked.text, "at least 1MiB",
                      "--speculative-history");
  }
  if (plan->engine.speculative_tokens == 0) {
    return NotAllowed("--speculative-history is " + asked.text + " without guesses",
                      "only with --speculative prompt-lookup, or auto on the CPU",
                      "--speculative-history");
  }
  plan->engine.speculative_history_bytes = asked.bytes;
  return {};
}

// Refuses page formats that the device does not have for any head shape.
Status CheckPageType(const SessionOptions& options, bool on_gpu) {
  const std::span<const DType> types = on_gpu ? std::span<const DType>(cuda::kPageTypes)
                                              : std::span<const DType>(cpu::kPageTypes);
  const DType asked = options.kv_cache_dtype.value_or(DType::kBFloat16);
  if (std::ranges::find(types, asked) != types.end()) return {};
  std::string allowed = "auto";
  for (DType dtype : types) allowed += ", " + std::string(NameOf(dtype));
  if (on_gpu) allowed += " (or --device cpu)";
  if (!on_gpu && cuda::IsCompiledIn()) allowed += " (or --device cuda)";
  return NotAllowed(
      "--kv-cache-dtype is " + std::string(NameOf(asked)) + " on a " + (on_gpu ? "GPU" : "CPU"),
      allowed, "--kv-cache-dtype");
}

// Chooses the page size and the model's length if the flags leave them open.
Status ChooseLengths(const SessionOptions& options, SessionPlan* plan) {
  EngineOptions& engine = plan->engine;
  if (plan->on_gpu() && engine.page_size != 0 && engine.page_size != cuda::kPageSize) {
    return NotAllowed("--page-size is " + std::to_string(engine.page_size) + " on a GPU",
                      std::to_string(cuda::kPageSize) + " (or --device cpu)", "--page-size");
  }
  DS_RETURN_IF_ERROR(CheckPageType(options, plan->on_gpu()));
  if (engine.page_size == 0) engine.page_size = plan->on_gpu() ? cuda::kPageSize : kCpuPageSize;
  const int max_positions = plan->summary.config.max_positions;
  if (engine.max_model_len > max_positions) {
    return NotAllowed("--max-model-len is " + std::to_string(engine.max_model_len),
                      RangeText(1, max_positions) + " (max_position_embeddings of " +
                          options.model_dir + "/config.json)",
                      "--max-model-len");
  }
  if (engine.max_model_len == 0) engine.max_model_len = max_positions;
  return {};
}

// Refuses a head shape that has no kernel for the page format.
Status CheckPages(const SessionPlan& plan) {
  const KvCodec& codec = plan.layout.codec;
  const DiffSpec& spec = plan.summary.config.attention;
  if (plan.HasPagesOf(codec.dtype)) return {};
  return InvalidArgument("--kv-cache-dtype is " + std::string(NameOf(codec.dtype)) +
                             ", which needs a head_dim that is a multiple of " +
                             std::to_string(codec.k_pack) +
                             " and V as wide or twice as wide; head_dim " +
                             std::to_string(spec.head_dim) + ", V " + std::to_string(spec.v_dim),
                         "--kv-cache-dtype");
}

// Sets the page format of each layer.
Status ChooseLayouts(const SessionOptions& options, SessionPlan* plan) {
  const ModelConfig& config = plan->summary.config;
  const DType as_weights = DTypeOf(plan->summary.weight_format);
  plan->layout = plan->PagesOf(options.kv_cache_dtype.value_or(as_weights));
  DS_RETURN_IF_ERROR(CheckPages(*plan));
  plan->layouts.assign(static_cast<size_t>(config.num_kv_layers()), plan->layout);
  for (int layer : options.kv_cache_skip_layers) {
    if (layer < -config.num_layers || layer >= config.num_layers) {
      return NotAllowed("--kv-cache-dtype-skip-layers has " + std::to_string(layer),
                        RangeText(-config.num_layers, config.num_layers - 1) + ", the layers of " +
                            options.model_dir,
                        "--kv-cache-dtype-skip-layers");
    }
    const int from_first = layer < 0 ? layer + config.num_layers : layer;
    const LayerConfig& kind = config.layers[static_cast<size_t>(from_first)];
    if (!kind.writes_kv()) {
      return InvalidArgument("--kv-cache-dtype-skip-layers has " + std::to_string(layer) +
                                 ", a layer without K and V of its own",
                             "--kv-cache-dtype-skip-layers");
    }
    plan->layouts[static_cast<size_t>(kind.kv)] = plan->PagesOf(as_weights);
  }
  return {};
}

// Pages do not contain states, so the prefix cache finds a prefix only where a state snapshot is
// kept.
Status ChooseForStates(const SessionOptions& options, SessionPlan* plan) {
  const ModelConfig& config = plan->summary.config;
  EngineOptions& engine = plan->engine;
  for (const LayerConfig& layer : config.layers) {
    if (plan->needs.has_window_pages)
      engine.window = std::max(engine.window, std::min(layer.window, engine.max_model_len));
  }
  if (config.num_state_layers() == 0 && engine.window == 0) return {};
  if (plan->needs.sequences > 0 || !engine.enable_prefix_caching) return {};
  engine.state_snapshot_interval = options.state_snapshot_interval;
  if (engine.state_snapshot_interval % engine.page_size != 0) {
    return NotAllowed(
        "--state-snapshot-interval is " + std::to_string(engine.state_snapshot_interval),
        "0, a multiple of --page-size, " + std::to_string(engine.page_size),
        "--state-snapshot-interval");
  }
  engine.enable_prefix_caching = engine.state_snapshot_interval > 0;
  return {};
}

// Bytes of a page id in all layers with, or without, page ids for windows.
size_t BytesOfPage(const SessionPlan& plan, bool in_windows) {
  std::vector<KvFormat> layers;
  for (const LayerConfig& layer : plan.summary.config.layers) {
    const bool is_apart = layer.window > 0 && plan.engine.window > 0;
    if (layer.writes_kv() && is_apart == in_windows)
      layers.push_back(plan.layouts[static_cast<size_t>(layer.kv)]);
  }
  return KvCache::BytesPerPage(layers);
}

// The first names, as part of a log line.
std::string Listed(const std::vector<std::string>& names) {
  constexpr size_t kMaxNames = 16;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxNames); ++i)
    text += (i == 0 ? "" : ", ") + ConfigReader::OneLine(names[i]);
  return names.size() > kMaxNames ? text + ", ..." : text;
}

// Layer numbers are shown as *, so that one entry names the tensors of all layers.
void WarnOfUnusedTensors(const std::vector<std::string>& tensors) {
  std::vector<std::string> names;
  for (const std::string& tensor : tensors) {
    std::string name;
    for (const char c : ConfigReader::OneLine(tensor)) {
      const bool is_digit = c >= '0' && c <= '9';
      const bool in_number = !name.empty() && (name.back() == '*' || name.back() == '.');
      if (!is_digit || !in_number) name += c;
      if (is_digit && in_number && name.back() == '.') name += '*';
    }
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return;
  Log(LogLevel::kWarning, "tensors_unused",
      {{"count", std::to_string(tensors.size())}, {"names", Listed(names)}});
}

// Names what the model directory holds but the model does not use.
void WarnOfUnused(const ModelOptions& model, const ModelSummary& summary) {
  WarnOfUnusedTensors(summary.unused_tensors);
  if (summary.unused_files.empty()) return;
  Log(LogLevel::kWarning, "weight_files_unused",
      {{"directory", model.model_dir}, {"names", Listed(summary.unused_files)}});
}

// A draft model guesses too. Its own checks refuse a GPU.
Status ChooseDraft(const SessionOptions& options, SessionPlan* plan) {
  if (options.draft_dir.empty()) return {};
  DS_RETURN_IF_ERROR(Assign(
      &plan->draft, PlanDraft(options, plan->model, plan->summary.config, plan->engine.page_size)));
  WarnOfUnused(plan->draft->model, plan->draft->summary);
  plan->engine.draft_cost = static_cast<double>(plan->draft->summary.weight_bytes) /
                            static_cast<double>(plan->summary.weight_bytes);
  plan->engine.draft_len_max = plan->draft->summary.config.max_positions;
  return {};
}

Result<std::unique_ptr<Model>> LoadWithProgress(ModelOptions options, ThreadPool& pool,
                                                ProgressLine::Form form) {
  ProgressLine line(form);
  LoadProgress progress(line.report(), line.pace());
  options.progress = &progress;
  return Model::Load(options, pool);
}

}  // namespace

bool SessionPlan::HasPagesOf(DType dtype) const {
  if (!on_gpu()) return cpu::TakesPages(summary.config.attention, PagesOf(dtype).codec);
  return std::ranges::find(cuda::kPageTypes, dtype) != std::end(cuda::kPageTypes);
}

KvFormat SessionPlan::PagesOf(DType dtype) const {
  return KvFormat::Of(summary.config.attention, engine.page_size, dtype,
                      on_gpu() ? KvArrangement::kImage : KvArrangement::kSlotLanes);
}

SessionNeeds ServerNeeds(const EngineOptions& engine) {
  SessionNeeds needs;
  needs.kv = [max_num_seqs = engine.max_num_seqs](int page_size, int max_model_len) {
    const int64_t tokens = std::min(max_model_len, kWantedTokensPerSequence);
    const int64_t per_sequence = (tokens + page_size - 1) / page_size * page_size;
    return KvDemand{max_model_len, std::max<int64_t>(max_model_len, per_sequence * max_num_seqs)};
  };
  needs.fills_the_gpu = true;
  return needs;
}

Result<int64_t> EstimateGpuBytes(const SessionOptions& options) {
  const Result<CpuIsa> isa = ChooseCpuIsa(options.cpu_isa);
  if (!isa.ok()) return isa.status();
  ModelOptions model = MakeModelOptions(options, ServerNeeds(options.engine), *isa);
  model.device = Device::kCuda;
  model.is_estimate = true;
  const Result<ModelSummary> summary = InspectModel(model);
  if (!summary.ok()) return summary.status();
  return static_cast<int64_t>(summary->memory_bytes + summary->device_step_bytes);
}

Result<SessionPlan> PlanSession(const SessionOptions& options, const SessionNeeds& needs) {
  Result<CpuIsa> isa = ChooseCpuIsa(options.cpu_isa);
  if (!isa.ok()) return isa.status();
  SessionPlan plan;
  plan.model = MakeModelOptions(options, needs, *isa);
  plan.num_threads = options.threads > 0 ? options.threads : AvailableCpus();
  plan.needs = needs;
  plan.engine = options.engine;
  DS_RETURN_IF_ERROR(ChooseDevice(options.device, &plan));
  plan.model.config_text = plan.summary.config_text;
  if (!needs.is_estimate) WarnOfUnused(plan.model, plan.summary);
  DS_RETURN_IF_ERROR(ChooseLengths(options, &plan));
  DS_RETURN_IF_ERROR(ChooseSpeculation(options, &plan));
  DS_RETURN_IF_ERROR(ChooseHistory(options.speculative_history, &plan));
  DS_RETURN_IF_ERROR(ChooseDraft(options, &plan));
  DS_RETURN_IF_ERROR(ChooseForStates(options, &plan));
  const ModelSummary& summary = plan.summary;
  DS_RETURN_IF_ERROR(ChooseLayouts(options, &plan));
  plan.page_bytes = BytesOfPage(plan, /*in_windows=*/false);
  plan.window_page_bytes = BytesOfPage(plan, /*in_windows=*/true);
  double free = -static_cast<double>(plan.weight_memory_bytes());
  if (plan.on_gpu()) {
    const Result<cuda::DeviceMemory> memory = cuda::MemoryOfDevice();
    if (!memory.ok()) return memory.status();
    plan.free_bytes = static_cast<int64_t>(memory->free_bytes);
    plan.gpu_share = options.gpu_memory_utilization;
    if (plan.gpu_share > 0) {
      const double limit = plan.gpu_share * static_cast<double>(memory->total_bytes);
      plan.free_bytes = std::min(plan.free_bytes, static_cast<int64_t>(limit));
    }
    free -= static_cast<double>(summary.device_step_bytes);
  } else {
    plan.free_bytes = FreeMemoryBytes();
  }
  constexpr double kEnough = 1e15;
  free += needs.is_estimate ? kEnough : static_cast<double>(plan.free_bytes);
  const Result<MemoryPlan> memory = PlanMemoryOf(plan, options.kv_cache_memory, free);
  if (!memory.ok()) return memory.status();
  SetMemory(*memory, &plan.engine);
  return plan;
}

Result<std::unique_ptr<ModelSession>> ModelSession::Load(const SessionOptions& options,
                                                         SessionPlan plan,
                                                         ProgressLine::Form form) {
  std::unique_ptr<ModelSession> session(new ModelSession(std::move(plan), options.threads));
  SessionPlan& loaded = session->plan_;
  Result<std::unique_ptr<Model>> model = LoadWithProgress(loaded.model, session->pool_, form);
  if (!model.ok()) return model.status();
  session->model_ = std::move(model).value();
  if (loaded.on_gpu()) {
    const Result<double> free = FreeForPages(*session->model_, loaded);
    if (!free.ok()) return free.status();
    const Result<MemoryPlan> memory = PlanMemoryOf(loaded, options.kv_cache_memory, *free);
    if (!memory.ok()) return memory.status();
    SetMemory(*memory, &loaded.engine);
  }
  Result<KvCache> kv = session->model_->MakeKvCache(
      loaded.layouts, {.num_pages = loaded.engine.num_pages,
                       .num_window_pages = loaded.engine.num_window_pages,
                       .num_states = loaded.engine.num_state_slots});
  if (!kv.ok()) return kv.status();
  session->kv_ = std::move(kv).value();
  if (loaded.needs.fills_the_gpu) DS_RETURN_IF_ERROR(session->model_->WarmUp(*session->kv_));
  if (options.kv_cache_commit && !loaded.on_gpu()) session->kv_->Commit(session->pool_);
  if (loaded.draft) {
    DS_RETURN_IF_ERROR(Assign(
        &session->draft_, LoadDraft(*loaded.draft, loaded.engine.num_pages, session->pool_, form)));
  }
  return session;
}

std::unique_ptr<Executor> ModelSession::MakeExecutor() {
  return std::make_unique<ModelExecutor>(std::move(model_), std::move(*kv_), &pool_,
                                         std::move(draft_));
}

}  // namespace diffserve
