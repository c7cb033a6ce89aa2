// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/model_session.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "engine/model_executor.h"
#include "kernels/base/cuda/device.h"
#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "kernels/process/machine_memory.h"
#include "models/config_reader.h"
#include "server/app/session/device_pages.h"

namespace diffserve {
namespace {

constexpr int kWantedTokensPerSequence = 256;

// For the CPU: PlanWeights may take a GPU.
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
  model.limits.has_code_pages = options.kv_cache_dtype && HasCodes(*options.kv_cache_dtype);
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
  if (plan.room.gpu_share == 0) return "";
  char text[64];
  std::snprintf(text, sizeof(text), " within --gpu-memory-utilization %.3g", plan.room.gpu_share);
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
                         ", free: " + MiB(static_cast<double>(plan.room.free_bytes)) + Limit(plan) +
                         FormatAdvice(plan.model, static_cast<double>(plan.room.free_bytes)));
}

// What the weights leave, and on a GPU also the largest step, before they are loaded.
double FreeBesideWeights(const SessionPlan& plan) {
  constexpr double kEnough = 1e15;
  const double room = plan.needs.is_estimate ? kEnough : static_cast<double>(plan.room.free_bytes);
  const size_t step = plan.on_gpu() ? plan.summary.device_step_bytes : 0;
  return room - static_cast<double>(plan.weight_memory_bytes()) - static_cast<double>(step);
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
    return FormatAdvice(plan.model, static_cast<double>(plan.room.free_bytes) - bytes);
  });
}

// The plan with the memory that follows from it.
SessionPlan WithMemory(SessionPlan plan, const MemoryPlan& memory) {
  EngineOptions& engine = plan.engine;
  if (memory.stops_proposing) {
    engine.speculative_tokens = 0;
    engine.speculative_history_bytes = 0;
    Log(LogLevel::kInfo, "speculation_off",
        {{"reason", "the states that proposals go back to leave too little room for sequences"}});
  }
  if (memory.max_num_seqs != engine.max_num_seqs) {
    Log(LogLevel::kInfo, "fewer_sequences",
        {{"max_num_seqs", std::to_string(memory.max_num_seqs)},
         {"asked", std::to_string(engine.MaxRunning())},
         {"reason", "states and windows of more sequences do not fit half of the KV memory"}});
  }
  engine.max_num_seqs = memory.max_num_seqs;
  engine.num_pages = memory.num_pages;
  engine.num_state_slots = memory.num_state_slots;
  engine.num_window_pages = memory.num_window_pages;
  return plan;
}

// By default tokens are proposed where that changes no bit of an answer.
int SpeculativeTokens(const SessionOptions& options, bool on_gpu, bool has_engine) {
  const bool keeps_bits = !on_gpu || options.batch_invariant;
  const bool proposes = options.speculation == Speculation::kAuto
                            ? keeps_bits
                            : options.speculation == Speculation::kPromptLookup;
  return has_engine && proposes ? EngineOptions::kVerifiedRowsMax - 1 : 0;
}

Status CheckHistory(const MemorySize& asked, int speculative_tokens) {
  constexpr int64_t kMin = int64_t{1} << 20;
  const std::string flag = "--speculative-history";
  if (asked.text.empty()) return {};
  if (asked.bytes < kMin) return NotAllowed(flag + " is " + asked.text, "at least 1MiB", flag);
  if (speculative_tokens > 0) return {};
  return NotAllowed(
      flag + " is " + asked.text + " without guesses",
      "only with --speculative prompt-lookup, or auto on the CPU or with --batch-invariant", flag);
}

// The engine's options but for its memory.
Result<EngineOptions> PlanEngine(const SessionOptions& options, const LengthsPlan& lengths,
                                 int speculative_tokens) {
  EngineOptions engine = options.engine;
  engine.page_size = lengths.page_size;
  engine.max_model_len = lengths.max_model_len;
  engine.window = lengths.window;
  engine.state_snapshot_interval = lengths.state_snapshot_interval;
  engine.enable_prefix_caching = lengths.enable_prefix_caching;
  DS_RETURN_IF_ERROR(CheckHistory(options.speculative_history, speculative_tokens));
  if (speculative_tokens > 0) engine.speculative_tokens = speculative_tokens;
  if (!options.speculative_history.text.empty())
    engine.speculative_history_bytes = options.speculative_history.bytes;
  return engine;
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

// The kernels of every processor are slow where the machine has no others.
void WarnOfSlowKernels(const ModelOptions& model) {
  if (model.device == Device::kCuda || model.isa != CpuIsa::kPlain) return;
  Log(LogLevel::kWarning, "cpu_kernels_slow",
      {{"cpu_isa", std::string(NameOf(model.isa))}, {"faster_with", "AVX2, FMA and F16C"}});
}

// A draft model guesses too. Its own checks refuse a GPU.
Result<std::optional<DraftPlan>> PlanDraftIfAsked(const SessionOptions& options,
                                                  const WeightsPlan& weights, int page_size) {
  std::optional<DraftPlan> draft;
  if (options.draft_dir.empty()) return draft;
  DS_RETURN_IF_ERROR(
      Assign(&draft, PlanDraft(options, weights.model, weights.summary.config, page_size)));
  WarnOfUnused(draft->model, draft->summary);
  return draft;
}

Result<DeviceRoom> RoomOf(const SessionOptions& options, bool on_gpu) {
  if (!on_gpu) return DeviceRoom{.free_bytes = FreeMemoryBytes()};
  const Result<cuda::DeviceMemory> memory = cuda::MemoryOfDevice();
  if (!memory.ok()) return memory.status();
  DeviceRoom room = {static_cast<int64_t>(memory->free_bytes), options.gpu_memory_utilization};
  if (room.gpu_share > 0) {
    const double limit = room.gpu_share * static_cast<double>(memory->total_bytes);
    room.free_bytes = std::min(room.free_bytes, static_cast<int64_t>(limit));
  }
  return room;
}

Result<std::unique_ptr<Model>> LoadWithProgress(ModelOptions options, ThreadPool& pool,
                                                ProgressLine::Form form) {
  ProgressLine line(form);
  LoadProgress progress(line.report(), line.pace());
  options.progress = &progress;
  return Model::Load(options, pool);
}

}  // namespace

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
  const Result<CpuIsa> isa = ChooseCpuIsa(options.cpu_isa);
  if (!isa.ok()) return isa.status();
  Result<WeightsPlan> weights = PlanWeights(options.device, MakeModelOptions(options, needs, *isa));
  if (!weights.ok()) return weights.status();
  const ModelConfig& config = weights->summary.config;
  const bool on_gpu = weights->on_gpu(), has_engine = needs.sequences == 0;
  if (!needs.is_estimate) {
    WarnOfUnused(weights->model, weights->summary);
    WarnOfSlowKernels(weights->model);
  }

  const Result<LengthsPlan> lengths = PlanLengths(
      {.model_dir = options.model_dir,
       .on_gpu = on_gpu,
       .engine = options.engine,
       .state_snapshot_interval = options.state_snapshot_interval,
       .keeps_prefixes = has_engine,
       .has_window_pages = needs.has_window_pages},
      config);
  if (!lengths.ok()) return lengths.status();
  Result<LayoutPlan> layout = PlanLayout({.model_dir = options.model_dir,
                                          .on_gpu = on_gpu,
                                          .lengths = *lengths,
                                          .weights = DTypeOf(weights->summary.weight_format),
                                          .asked = options.kv_cache_dtype,
                                          .skip_layers = options.kv_cache_skip_layers},
                                         config);
  if (!layout.ok()) return layout.status();
  const int speculative_tokens = SpeculativeTokens(options, on_gpu, has_engine);
  Result<EngineOptions> engine = PlanEngine(options, *lengths, speculative_tokens);
  if (!engine.ok()) return engine.status();
  Result<std::optional<DraftPlan>> draft = PlanDraftIfAsked(options, *weights, lengths->page_size);
  if (!draft.ok()) return draft.status();
  if (*draft) {
    engine->draft_cost = static_cast<double>((*draft)->summary.weight_bytes) /
                         static_cast<double>(weights->summary.weight_bytes);
    engine->draft_len_max = (*draft)->summary.config.max_positions;
  }
  const Result<DeviceRoom> room = RoomOf(options, on_gpu);
  if (!room.ok()) return room.status();
  SessionPlan plan = {std::move(*weights),
                      std::move(*layout),
                      needs,
                      *engine,
                      std::move(*draft),
                      *room,
                      options.threads > 0 ? options.threads : AvailableCpus(),
                      speculative_tokens > 0 && options.speculation != Speculation::kPromptLookup};
  const Result<MemoryPlan> memory = PlanMemoryOf(plan, options.kv_cache_memory,
                                                 FreeBesideWeights(plan));
  if (!memory.ok()) return memory.status();
  return WithMemory(std::move(plan), *memory);
}

Result<std::unique_ptr<ModelSession>> ModelSession::Load(const SessionOptions& options,
                                                         SessionPlan plan,
                                                         ProgressLine::Form form) {
  std::unique_ptr<ModelSession> session(new ModelSession(std::move(plan), options.threads));
  const SessionPlan& loaded = session->plan_;
  Result<std::unique_ptr<Model>> model = LoadWithProgress(loaded.model, session->pool_, form);
  if (!model.ok()) return model.status();
  session->model_ = std::move(model).value();
  if (loaded.on_gpu()) {
    const Result<double> free = FreeForPages(*session->model_, loaded);
    if (!free.ok()) return free.status();
    const Result<MemoryPlan> memory = PlanMemoryOf(loaded, options.kv_cache_memory, *free);
    if (!memory.ok()) return memory.status();
    session->plan_ = WithMemory(loaded, *memory);
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
