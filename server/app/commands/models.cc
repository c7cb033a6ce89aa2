// SPDX-License-Identifier: Apache-2.0
// `diffserve models`: what the hub's cache holds, and how each model would run on this machine.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "kernels/base/machine_probe.h"
#include "kernels/ops/device_probe.h"
#include "kernels/process/terminal_text.h"
#include "models/load_config.h"
#include "server/app/commands/commands.h"
#include "server/app/session/session_cost.h"
#include "server/hub/hub_cache.h"
#include "server/hub/hub_settings.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

constexpr int kContextTokens = 4096;  // of the one sequence that the memory is for

// A cached model in one format of its linear layers.
struct FormatEstimate {
  SessionPlan plan;
  double total_bytes = 0;
  bool fits = false;
  double tokens_per_s = 0;
};

struct ModelEstimate {
  CachedModel model;
  uint64_t disk_bytes = 0;
  std::string refusal;  // why it is not served; empty: it is
  std::vector<FormatEstimate> formats;
};

uint64_t BytesOfFiles(const std::string& dir) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unknown;
    const uintmax_t size = std::filesystem::file_size(entry->path(), unknown);
    if (!unknown) bytes += size;
  }
  return bytes;
}

// One sequence of up to kContextTokens tokens.
Result<SessionPlan> Planned(SessionOptions options, int max_positions) {
  options.engine.max_model_len = std::min(kContextTokens, max_positions);
  options.engine.max_num_seqs = 1;
  SessionNeeds needs = ServerNeeds(options.engine);
  needs.fills_the_gpu = false;
  needs.is_estimate = true;
  return PlanSession(options, needs);
}

ModelEstimate EstimateOf(const CachedModel& model, SessionOptions options) {
  ModelEstimate estimate{model, BytesOfFiles(model.snapshot_dir), {}, {}};
  options.model_dir = model.snapshot_dir;
  const Result<ModelConfig> config = LoadModelConfig(model.snapshot_dir);
  if (!config.ok()) {
    estimate.refusal = config.status().message();
    return estimate;
  }
  for (const std::optional<WeightFormat> format :
       {std::optional<WeightFormat>(), std::optional(WeightFormat::kInt8),
        std::optional(WeightFormat::kInt4)}) {
    if (format && config->packed) break;  // it has the format that it has
    options.quantization = format;
    Result<SessionPlan> plan = Planned(options, config->max_positions);
    if (!plan.ok()) {
      estimate.refusal = plan.status().message();
      return estimate;
    }
    const double total = TotalBytes(*plan);
    const bool fits = total <= static_cast<double>(plan->room.free_bytes);
    estimate.formats.push_back({std::move(plan).value(), total, fits});
  }
  return estimate;
}

// The device is the one on which the plan runs.
Result<double> ReadBytesPerSecond(const SessionPlan& plan) {
  if (!plan.on_gpu()) {
    ThreadPool pool({.num_threads = plan.num_threads});
    return MeasureReadBytesPerSecond(plan.model.isa, pool);
  }
  const Result<std::unique_ptr<cuda::DeviceProbe>> probe = cuda::DeviceProbe::Open(plan.model.gpu);
  if (!probe.ok()) return probe.status();
  return (*probe)->MeasureReadBytesPerSecond();
}

class ModelList {
 public:
  ModelList(const SessionOptions& options, const HubCache& cache) : cache_(cache) {
    for (const CachedModel& model : cache.List()) models_.push_back(EstimateOf(model, options));
  }

  // The memory's speed is measured once, if any model is served.
  Status EstimateSpeed() {
    for (ModelEstimate& model : models_) {
      for (FormatEstimate& format : model.formats) {
        if (read_bytes_per_s_ == 0)
          DS_RETURN_IF_ERROR(Assign(&read_bytes_per_s_, ReadBytesPerSecond(format.plan)));
        free_bytes_ = format.plan.room.free_bytes;
        format.tokens_per_s = read_bytes_per_s_ /
                              (static_cast<double>(format.plan.summary.weight_bytes) +
                               SequenceBytes(format.plan, /*context=*/0));
      }
    }
    return {};
  }

  void PrintText() const {
    if (models_.empty()) {
      std::printf("no model in %s; diffserve serve hf:ORG/NAME fetches one\n",
                  cache_.dir().c_str());
      return;
    }
    for (const ModelEstimate& model : models_) {
      std::printf("%s  %s on disk, ", ShownOnTerminal(model.model.name.Text()).c_str(),
                  MiB(static_cast<double>(model.disk_bytes)).c_str());
      if (!model.refusal.empty()) {
        std::printf("not served: %s\n", ShownOnTerminal(model.refusal).c_str());
        continue;
      }
      std::printf("%s\n", model.formats.front().plan.summary.config.family.c_str());
      for (const FormatEstimate& format : model.formats) {
        std::printf("  %-10s %12s  %-12s %10.1f tokens/s\n",
                    NameOf(format.plan.summary.linear_format).data(),
                    MiB(format.total_bytes).c_str(), format.fits ? "fits" : "does not fit",
                    format.tokens_per_s);
      }
    }
    if (read_bytes_per_s_ == 0) return;
    std::printf(
        "\nMemory: weights, KV pages of one sequence of up to %d tokens, and a step; free now: "
        "%s.\nSpeed: at most, computed: %.1f GB/s, the memory's speed measured now, divided by the "
        "bytes that\na decode step of one sequence reads. --quantization chooses the format.\n",
        kContextTokens, MiB(static_cast<double>(free_bytes_)).c_str(), read_bytes_per_s_ / 1e9);
  }

  void PrintJson() const {
    const std::string text = JsonObjectOf([&](JsonWriter& json) {
      json.Add("cache_dir", cache_.dir().string()).Add("free_bytes", free_bytes_);
      json.Add("read_bytes_per_s", read_bytes_per_s_).Add("context_tokens", kContextTokens);
      json.Key("models").Begin('[');
      for (const ModelEstimate& model : models_) AddModel(model, json);
      json.End(']');
    });
    std::printf("%s\n", text.c_str());
  }

 private:
  static void AddModel(const ModelEstimate& model, JsonWriter& json) {
    const bool is_served = model.refusal.empty();
    json.Begin('{').Add("name", "hf:" + model.model.name.repository);
    json.Add("revision", model.model.name.revision).Add("commit", model.model.commit);
    json.Add("directory", model.model.snapshot_dir).Add("disk_bytes", model.disk_bytes);
    json.Add("refusal", is_served ? std::nullopt : std::optional(model.refusal));
    json.Add("family", is_served ? std::optional(model.formats.front().plan.summary.config.family)
                                 : std::nullopt);
    json.Key("formats").Begin('[');
    for (const FormatEstimate& format : is_served ? model.formats : std::vector<FormatEstimate>()) {
      json.Begin('{').Add("format", NameOf(format.plan.summary.linear_format));
      json.Add("total_bytes", format.total_bytes).Add("fits", format.fits);
      json.Add("step_weight_bytes", format.plan.summary.weight_bytes);
      json.Add("tokens_per_s", format.tokens_per_s).End('}');
    }
    json.End(']').End('}');
  }

  const HubCache& cache_;
  std::vector<ModelEstimate> models_;
  int64_t free_bytes_ = 0;
  double read_bytes_per_s_ = 0;  // 0: not measured
};

}  // namespace

Status RunModels(const SessionOptions& options, bool json) {
  const Result<HubSettings> settings = ReadHubSettings(
      [](const char* variable) { return std::getenv(variable); });
  if (!settings.ok()) return settings.status();
  const HubCache cache(settings->cache_dir);
  ModelList list(options, cache);
  DS_RETURN_IF_ERROR(list.EstimateSpeed());
  json ? list.PrintJson() : list.PrintText();
  return {};
}

}  // namespace diffserve
