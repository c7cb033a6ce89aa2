#include "models/model.h"

#include <filesystem>

#include "kernels/base/machine_memory.h"
#include "models/checkpoint.h"
#include "models/decoder.h"
#include "models/model_cuda.h"
#include "models/weights.h"

namespace diffserve {
namespace {

// Weights that cannot fit are refused at once rather than killed by the system half-way.
Status CheckMemory(const std::string& model_dir, size_t needed_bytes) {
  const auto machine_bytes = static_cast<size_t>(MachineMemoryBytes());
  if (needed_bytes <= machine_bytes) return Status();
  return InvalidArgument(model_dir + ": needs " + std::to_string(needed_bytes >> 20) +
                         " MiB for weights and rope table, this machine has " +
                         std::to_string(machine_bytes >> 20) + " MiB");
}

// A checked model directory, of which no tensor has been read.
struct OpenModel {
  ModelConfig config;
  WeightFormat weight_format;
  WeightFormat linear_format;
  int max_positions;
  std::unique_ptr<Checkpoint> checkpoint;
  WeightSizes sizes;
};

// A float16 checkpoint is served in float32, which holds every float16, unless float16 is asked
// for.
WeightFormat FormatOfCheckpoint(DType dtype) {
  return dtype == DType::kFloat16 ? WeightFormat::kFloat32 : WeightFormatOf(dtype);
}

Result<OpenModel> OpenAndCheck(const ModelOptions& options) {
  std::error_code not_found;
  if (!std::filesystem::is_directory(options.model_dir, not_found)) {
    return InvalidArgument(options.model_dir + ": is not a directory");
  }
  Result<ModelConfig> config = LoadModelConfig(options.model_dir);
  if (!config.ok()) return config.status();
  OpenModel model;
  model.config = std::move(config).value();
  const bool on_cuda = options.device == Device::kCuda;
  model.weight_format = options.weight_format.value_or(
      on_cuda ? WeightFormat::kBFloat16 : FormatOfCheckpoint(model.config.checkpoint_dtype));
  model.linear_format = options.linear_format.value_or(model.weight_format);
  if (on_cuda)
    DS_RETURN_IF_ERROR(cuda::CheckModel(options.model_dir, model.config, model.weight_format,
                                        model.linear_format));
  model.max_positions = options.max_positions > 0 ? options.max_positions
                                                  : model.config.max_positions;

  if (options.dummy_weights) {
    model.checkpoint = Checkpoint::Dummy(DTypeOf(model.weight_format), options.seed);
  } else {
    Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(options.model_dir);
    if (!checkpoint.ok()) return checkpoint.status();
    model.checkpoint = std::move(checkpoint).value();
  }
  Result<WeightSizes> sizes = CheckWeights(model.config, *model.checkpoint, model.weight_format,
                                           model.linear_format, /*packs_tied_head=*/!on_cuda);
  if (!sizes.ok()) return sizes.status();
  model.sizes = *sizes;
  const size_t head_dim = static_cast<size_t>(model.config.attention.head_dim);
  const size_t rope_bytes = static_cast<size_t>(model.max_positions) * head_dim * sizeof(float);
  model.sizes.memory_bytes += rope_bytes;
  if (!on_cuda) DS_RETURN_IF_ERROR(CheckMemory(options.model_dir, model.sizes.memory_bytes));
  return model;
}

}  // namespace

Result<ModelSummary> InspectModel(const ModelOptions& options) {
  Result<OpenModel> model = OpenAndCheck(options);
  if (!model.ok()) return model.status();
  ModelSummary summary = {model->config,
                          model->weight_format,
                          model->linear_format,
                          model->sizes.num_parameters,
                          model->sizes.step_bytes,
                          model->sizes.memory_bytes,
                          cpu::Decoder::ActivationBytesPerToken(model->config),
                          0};
  if (options.device == Device::kCuda)
    summary.device_step_bytes = cuda::StepBytes(model->config, options.limits);
  return summary;
}

Result<std::unique_ptr<Model>> Model::Load(const ModelOptions& options, ThreadPool& pool) {
  Result<OpenModel> model = OpenAndCheck(options);
  if (!model.ok()) return model.status();
  if (options.device == Device::kCuda) {
    return cuda::LoadModel({.config = std::move(model->config),
                            .max_positions = model->max_positions,
                            .sizes = model->sizes,
                            .limits = options.limits,
                            .batch_invariant = options.batch_invariant},
                           *model->checkpoint);
  }
  cpu::Decoder::Parts parts;
  cpu::WeightPacker packer(model->weight_format, model->linear_format, options.isa, pool);
  DS_RETURN_IF_ERROR(
      Assign(&parts.weights, LoadWeights<cpu::Weights>(model->config, *model->checkpoint, packer)));
  parts.config = std::move(model->config);
  parts.weight_format = model->weight_format;
  parts.isa = options.isa;
  parts.max_positions = model->max_positions;
  parts.sizes = model->sizes;
  return std::unique_ptr<Model>(std::make_unique<cpu::Decoder>(std::move(parts), pool));
}

}  // namespace diffserve
