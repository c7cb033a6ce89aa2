// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include <cstdio>
#include <filesystem>

#include "kernels/base/refusal.h"
#include "kernels/ops/weight_packer.h"
#include "kernels/process/log.h"
#include "kernels/process/machine_memory.h"
#include "models/checkpoint.h"
#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/load_config.h"
#include "models/model_cuda.h"
#include "models/model_directory.h"
#include "models/packed_weights.h"
#include "models/regular_file.h"
#include "models/weights.h"

namespace diffserve {
namespace {

// Refuses weights that cannot fit at once, before the system kills the process half-way.
Status CheckMemory(const ModelOptions& options, size_t needed_bytes) {
  const auto machine_bytes = static_cast<size_t>(MachineMemoryBytes());
  if (needed_bytes <= machine_bytes) return Status();
  return InvalidArgument(options.model_dir + ": needs " + std::to_string(needed_bytes >> 20) +
                         " MiB for weights and rope table, this machine has " +
                         std::to_string(machine_bytes >> 20) + " MiB" +
                         FormatAdvice(options, static_cast<double>(machine_bytes)));
}

// A checked model directory of which no tensor has been read.
struct OpenModel {
  ModelConfig config;
  std::string config_text;
  WeightFormat weight_format;
  WeightFormat linear_format;
  int max_positions;
  std::unique_ptr<Checkpoint> checkpoint;
  WeightSizes sizes;
};

// Refuses options for which a packed directory would have to be converted.
Status CheckPacked(const ModelOptions& options, const ModelConfig& config) {
  const PackedFormat& packed = *config.packed;
  const std::string format(NameOf(packed.format)), dtype(NameOf(config.checkpoint_dtype));
  const std::string where = options.model_dir + "/config.json: quantization_config: ";
  if (options.linear_format.value_or(packed.format) != packed.format) {
    return NotAllowed(where + "is packed in " + format + ", and --quantization is " +
                          std::string(NameOf(*options.linear_format)),
                      format + ", or not to give it", "--quantization");
  }
  if (options.device == Device::kCuda) return Status();
  if (options.weight_format.value_or(WeightFormatOf(config.checkpoint_dtype)) !=
      WeightFormatOf(config.checkpoint_dtype)) {
    return NotAllowed(where + "is packed with " + dtype + " for the rest, and --dtype is " +
                          std::string(NameOf(*options.weight_format)),
                      "auto, " + dtype, "--dtype");
  }
  if (options.dummy_weights || cpu::PanelColumns(options.isa) == packed.panel_columns)
    return Status();
  return NotAllowed(where + "panels of " + std::to_string(packed.panel_columns) +
                        " columns, and --cpu-isa is " + std::string(NameOf(options.isa)),
                    packed.Levels() + ", or convert the original with --cpu-isa " +
                        std::string(NameOf(options.isa)),
                    "--cpu-isa");
}

// Fills the model's config and its text.
Status ReadConfig(const ModelOptions& options, OpenModel* model) {
  std::error_code not_found;
  if (!std::filesystem::is_directory(options.model_dir, not_found))
    return InvalidArgument(options.model_dir + ": is not a directory");
  const std::string path = (std::filesystem::path(options.model_dir) / "config.json").string();
  Result<std::string> text = options.config_text ? Result<std::string>(*options.config_text)
                                                 : ReadJsonFile(path, ConfigReader::kMaxBytes);
  if (!text.ok()) {
    if (text.status().code() != StatusCode::kNotFound) return text.status();
    return InvalidArgument(text.status().message() + DescribeOtherContents(options.model_dir));
  }
  Result<ConfigReader> json = ConfigReader::Parse(*text, path);
  if (!json.ok()) return json.status();
  model->config_text = std::move(text).value();
  return Assign(&model->config, LoadModelConfig(options.model_dir, *json));
}

Result<OpenModel> OpenAndCheck(const ModelOptions& options) {
  OpenModel model;
  DS_RETURN_IF_ERROR(ReadConfig(options, &model));
  const bool on_cuda = options.device == Device::kCuda;
  std::optional<PackedFormat>& packed = model.config.packed;
  if (packed) {
    DS_RETURN_IF_ERROR(CheckPacked(options, model.config));
    model.weight_format = on_cuda ? options.weight_format.value_or(WeightFormat::kBFloat16)
                                  : WeightFormatOf(model.config.checkpoint_dtype);
    model.linear_format = packed->format;
    if (options.dummy_weights) packed.reset();  // dummy weights are quantised as any others
  } else {
    model.weight_format = options.weight_format.value_or(
        on_cuda ? WeightFormat::kBFloat16
                : WeightFormatOf(DTypeServed(model.config.checkpoint_dtype)));
    const bool keeps_fp8 = on_cuda && model.config.stores_fp8;
    model.linear_format = options.linear_format.value_or(keeps_fp8 ? WeightFormat::kFp8E4M3
                                                                   : model.weight_format);
    if (options.dummy_weights) model.config.stores_fp8 = false;
  }
  if (!on_cuda && model.linear_format == WeightFormat::kFp8E4M3) {
    return NotAllowed("--quantization is fp8 with --device cpu", "none, int8, int4",
                      "--quantization");
  }
  if (on_cuda)
    DS_RETURN_IF_ERROR(cuda::CheckModel(options.model_dir, model.config, model.weight_format));
  model.max_positions = options.max_positions > 0 ? options.max_positions
                                                  : model.config.max_positions;

  if (options.dummy_weights) {
    model.checkpoint = Checkpoint::Dummy(DTypeOf(model.weight_format), options.seed);
  } else {
    Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(options.model_dir);
    if (!checkpoint.ok()) return checkpoint.status();
    model.checkpoint = std::move(checkpoint).value();
    model.checkpoint->KeepMatricesAs(DTypeOf(model.weight_format));
    if (model.config.stores_fp8) model.checkpoint->AllowFp8();
  }
  const bool keeps_others = model.config.stores_fp8 &&
                            model.linear_format == WeightFormat::kFp8E4M3;
  const bool packs_tied_head = !on_cuda || (IsQuantized(model.linear_format) && !keeps_others);
  Result<WeightSizes> sizes = CheckWeights(model.config, *model.checkpoint, model.weight_format,
                                           model.linear_format, packs_tied_head);
  if (!sizes.ok()) return sizes.status();
  model.sizes = *sizes;
  const size_t head_dim = static_cast<size_t>(model.config.attention.head_dim);
  const bool rotates = model.config.rope.style != RopeStyle::kNone;
  const size_t rope_bytes = rotates * static_cast<size_t>(model.max_positions) * head_dim *
                            sizeof(float);
  model.sizes.memory_bytes += rope_bytes;
  if (!on_cuda && !options.is_estimate)
    DS_RETURN_IF_ERROR(CheckMemory(options, model.sizes.memory_bytes));
  return model;
}

Status WarnOfUntied(const std::string& model_dir, const OpenModel& model) {
  const Result<bool> differ = TiedTablesDiffer(model.config, *model.checkpoint);
  if (!differ.ok() || !*differ) return differ.status();
  Log(LogLevel::kWarning, "tied_weights_differ",
      {{"directory", model_dir},
       {"reason",
        "tie_word_embeddings is true, but lm_head.weight is there and is not the embedding; both "
        "are used, as in transformers 5 (4 uses the embedding for both)"}});
  return Status();
}

}  // namespace

KvCache::Layout LayoutOf(const ModelConfig& config, std::vector<KvFormat> layers,
                         const KvCacheSize& size) {
  KvCache::Layout layout;
  layout.layers = std::move(layers);
  for (const LayerConfig& layer : config.layers) {
    const bool has_own_ids = layer.window > 0 && size.num_window_pages > 0;
    if (!layer.writes_kv()) continue;
    layout.num_pages.push_back(has_own_ids ? size.num_window_pages : size.num_pages);
    layout.has_window_pages.push_back(has_own_ids);
  }
  layout.state_floats = config.state_floats();
  layout.num_states = config.num_state_layers() > 0 ? size.num_states : 0;
  return layout;
}

Status CheckModelDirectory(const std::string& model_dir) {
  ModelOptions options;
  options.model_dir = model_dir;
  OpenModel model;
  return ReadConfig(options, &model);
}

Result<ModelSummary> InspectModel(const ModelOptions& options) {
  Result<OpenModel> model = OpenAndCheck(options);
  if (!model.ok()) return model.status();
  ModelSummary summary = {model->config,
                          std::move(model->config_text),
                          model->weight_format,
                          model->linear_format,
                          model->sizes.num_parameters,
                          model->sizes.step_bytes,
                          model->sizes.memory_bytes,
                          cpu::Decoder::ActivationBytesPerToken(model->config),
                          0,
                          std::move(model->sizes.unused),
                          model->checkpoint->UnusedFiles()};
  if (options.device == Device::kCuda)
    summary.device_step_bytes = cuda::StepBytes(
        model->config,
        {options.limits, options.logit_quant, model->linear_format, options.batch_invariant});
  return summary;
}

std::string FormatAdvice(const ModelOptions& options, double bytes_max) {
  ModelOptions other = options;
  other.is_estimate = true;
  const Result<ModelSummary> now = InspectModel(other);
  if (!now.ok() || now->config.packed) return {};
  std::string fitting, smallest;
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    other.linear_format = format;
    const Result<ModelSummary> summary = InspectModel(other);
    if (!summary.ok() || summary->memory_bytes >= now->memory_bytes) continue;
    const double bytes = static_cast<double>(summary->memory_bytes);
    char size[32];
    std::snprintf(size, sizeof(size), "%.1f GiB", bytes / (1 << 30));
    smallest = "in " + std::string(NameOf(format)) + " the weights would take " + size;
    if (bytes <= bytes_max) fitting += "; " + smallest;
  }
  if (!fitting.empty()) return fitting + " (--quantization)";
  return smallest.empty() ? "" : "; even " + smallest;
}

Result<std::unique_ptr<Model>> Model::Load(const ModelOptions& options, ThreadPool& pool) {
  Result<OpenModel> model = OpenAndCheck(options);
  if (!model.ok()) return model.status();
  if (options.progress != nullptr) {
    options.progress->Begin("loading", model->sizes.stored_bytes);
    model->checkpoint->ReportTo(options.progress);
  }
  model->checkpoint->ReadWith(pool);
  model->checkpoint->DigestTo(options.digest.get());
  DS_RETURN_IF_ERROR(WarnOfUntied(options.model_dir, *model));
  if (options.device == Device::kCuda) {
    return cuda::LoadModel({.gpu = options.gpu,
                            .config = std::move(model->config),
                            .linear_format = model->linear_format,
                            .isa = options.isa,
                            .max_positions = model->max_positions,
                            .sizes = model->sizes,
                            .limits = options.limits,
                            .logit_quant = options.logit_quant,
                            .batch_invariant = options.batch_invariant},
                           *model->checkpoint, pool);
  }
  cpu::Decoder::Parts parts;
  parts.limits = options.limits;
  cpu::WeightPacker packer(model->weight_format, model->linear_format, options.isa, pool);
  DS_RETURN_IF_ERROR(Assign(
      &parts.weights, model->config.packed
                          ? LoadPackedWeights<cpu::Weights>(model->config, *model->checkpoint,
                                                            packer, options.isa, pool)
                          : LoadWeights<cpu::Weights>(model->config, *model->checkpoint, packer)));
  parts.config = std::move(model->config);
  parts.weight_format = model->weight_format;
  parts.isa = options.isa;
  parts.logit_quant = options.logit_quant;
  parts.max_positions = model->max_positions;
  parts.sizes = model->sizes;
  return std::unique_ptr<Model>(std::make_unique<cpu::Decoder>(std::move(parts), pool));
}

}  // namespace diffserve
