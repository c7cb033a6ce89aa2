// SPDX-License-Identifier: Apache-2.0
#include "models/model_cuda.h"

#include <algorithm>
#include <utility>

#include "kernels/base/cuda/device.h"
#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "models/packed_weights.h"
#include "models/step_runner_cuda.h"
#include "models/step_transfer_cuda.h"

namespace diffserve::cuda {
namespace {

constexpr int kFirstStepSequences = 2;

void Complete(const ModelConfig& config, StepLimits* limits) {
  limits->num_sequences = std::max(limits->num_sequences, kFirstStepSequences);
  limits->num_tokens = std::max(limits->num_tokens, limits->num_sequences);
  if (limits->max_model_len == 0) limits->max_model_len = config.max_positions;
}

RopeTable TableOf(const LoadOptions& options) {
  const ModelConfig& config = options.config;
  if (config.rope.style == RopeStyle::kNone) return {};
  return {InverseFrequencies(config.rope, config.attention.head_dim), options.max_positions,
          config.rope.attention_factor};
}

// The table must live until the stream has executed the copies.
Status UploadRope(const RopeTable& rope, const Stream& stream, Decoder::Parts* parts) {
  parts->rope = rope.angles();
  const size_t angles = static_cast<size_t>(parts->rope.num_positions) *
                        static_cast<size_t>(parts->rope.half_dim);
  for (const auto& [buffer, values] :
       {std::pair(&parts->cos, &parts->rope.cos), std::pair(&parts->sin, &parts->rope.sin)}) {
    DS_RETURN_IF_ERROR(Assign(buffer, DeviceBuffer::Allocate(angles * sizeof(float))));
    DS_RETURN_IF_ERROR(CopyToDevice(std::as_bytes(std::span(*values, angles)), *buffer, 0, stream));
    *values = buffer->as<float>();
  }
  return Status();
}

size_t ScratchBytes(const ModelConfig& config, WeightFormat linear_format) {
  if (linear_format == WeightFormat::kFp8E4M3) return size_t{64} << 20;
  const bool has_biases = config.qkv_bias || config.mlp_bias;  // of bfloat16 results
  return IsQuantized(linear_format) || has_biases ? size_t{32} << 20 : 0;
}

// For the sums of few-row products that several thread blocks share: as many as the widest one has,
// up to a limit beyond which fewer share; 0 without few-row products.
size_t PartialBytes(const ModelConfig& config, const StepLimits& limits, bool batch_invariant,
                    WeightFormat linear_format) {
  if (!batch_invariant && !IsQuantized(linear_format)) return 0;
  const DiffSpec& spec = config.attention;
  const int width = std::max({config.vocab_size, 2 * config.intermediate_size,
                              2 * config.mamba.inner,
                              spec.q_width() + spec.k_width() + spec.v_width()});
  const int tokens = std::min(limits.num_tokens, kFewRowsTileMax);
  const size_t bytes = sizeof(float) * kFewRowsParts * static_cast<size_t>(tokens) *
                       static_cast<size_t>(width);
  return std::min(bytes, size_t{128} << 20);
}

Status LoadParts(const LoadOptions& options, const DeviceInfo& device, Checkpoint& checkpoint,
                 WeightPacker& packer, ThreadPool& pool, const Stream& stream,
                 Decoder::Parts* parts) {
  parts->config = options.config;
  MatrixLibraryOptions matrices;
  matrices.batch_invariant = options.batch_invariant;
  matrices.scratch_bytes = ScratchBytes(options.config, options.linear_format);
  matrices.has_fp8_weights = options.linear_format == WeightFormat::kFp8E4M3;
  DS_RETURN_IF_ERROR(Assign(&parts->matrices, MatrixLibrary::Open(matrices)));
  if (const size_t bytes = PartialBytes(options.config, options.limits, options.batch_invariant,
                                        options.linear_format);
      bytes > 0) {
    DS_RETURN_IF_ERROR(Assign(&parts->few_rows, FewRows::Create(device, bytes, stream)));
  }
  DS_RETURN_IF_ERROR(Assign(
      &parts->weights, options.config.packed
                           ? LoadPackedWeights<Weights>(options.config, checkpoint, packer,
                                                        options.config.packed->FirstLevel(), pool)
                           : LoadWeights<Weights>(options.config, checkpoint, packer)));
  parts->logit_quant = options.logit_quant;
  DS_RETURN_IF_ERROR(Assign(
      &parts->work, Workspace::Allocate(options.config, options.limits, options.logit_quant)));
  // Clears memory, so that the first step reads nothing that was never written, except pages.
  // Counters begin at 0.
  const Workspace& work = parts->work;
  for (const DeviceBuffer* buffer : {&work.normed, &work.attention, &work.sampled, &work.convolved,
                                     &work.scanned, &work.memory, &work.counters})
    DS_RETURN_IF_ERROR(FillBytes(*buffer, std::byte{0}, stream));
  return Status();
}

// Runs a prompt token and a generated one, both with a draw, so that failures of this device appear
// now.
Status RunOneStep(Model& model) {
  Result<KvCache> kv = model.MakeUniformKvCache(ImageFormat(model.config().attention),
                                                {.num_pages = 2, .num_states = 2});
  if (!kv.ok()) return kv.status();
  const int32_t pages[] = {0, 1};
  Batch batch;
  batch.tokens = {0, 0};
  batch.sequences = {{0, 1, 0, &pages[0]}, {1, 1, 0, &pages[1]}};
  batch.logit_rows = {0, 1};
  batch.num_prompt_tokens = {1, 0};
  batch.sample_rows = {{.kind = SampleKind::kGreedy}, {.kind = SampleKind::kGreedy}};
  DS_RETURN_IF_ERROR(model.Forward(batch, *kv));
  return model.Collect().status();
}

}  // namespace

Status CheckModel(const std::string& model_dir, const ModelConfig& config, WeightFormat format) {
  if (format != WeightFormat::kBFloat16) {
    return NotAllowed("--dtype is " + std::string(NameOf(format)) + " with --device cuda",
                      "auto, bfloat16", "--dtype");
  }
  constexpr int kUnit = 8;  // elements in 16 bytes, the alignment of activation rows
  const std::pair<const char*, int> widths[] = {{"hidden_size", config.hidden_size},
                                                {"intermediate_size", config.intermediate_size}};
  for (const auto& [key, width] : widths) {
    if (width % kUnit == 0) continue;
    return NotAllowed(
        model_dir + "/config.json: --device cuda: " + key + " is " + std::to_string(width),
        "a multiple of " + std::to_string(kUnit));
  }
  const char* reason = DiffAttentionUnsupported(config.attention, ImageFormat(config.attention));
  if (reason == nullptr) return Status();
  const DiffSpec& spec = config.attention;
  return NotAllowed(
      model_dir + "/config.json: --device cuda: " + reason + ": head_dim " +
          std::to_string(spec.head_dim) + ", v_dim " + std::to_string(spec.v_dim) + ", K maps " +
          std::to_string(spec.k_maps),
      "head_dim 16 to 128 in steps of 16, or 256 (with two K maps on a GPU with 164 KiB of "
      "shared memory or more)");
}

size_t StepBytes(const ModelConfig& config, StepBytesOptions options) {
  Complete(config, &options.limits);
  return Workspace::Bytes(config, options.limits, options.logit_quant) +
         MatrixLibraryOptions().workspace_bytes + ScratchBytes(config, options.linear_format) +
         PartialBytes(config, options.limits, options.batch_invariant, options.linear_format) +
         StepUpload::kBytes;
}

Result<std::unique_ptr<Model>> LoadModel(LoadOptions options, Checkpoint& checkpoint,
                                         ThreadPool& pool) {
  Complete(options.config, &options.limits);
  const Result<DeviceInfo> device = OpenDevice(options.gpu);
  if (!device.ok()) return device.status();
  if (options.linear_format == WeightFormat::kFp8E4M3 &&
      device->compute_capability < kFp8ComputeCapabilityMin) {
    return NotAllowed(
        "--quantization is fp8, and " + Describe(*device) + " multiplies no such numbers",
        "int8, int4, or a GPU of compute capability 8.9 or more", "--quantization");
  }
  if (device->needs_compilation) {
    Log(LogLevel::kWarning, "kernels_need_compilation",
        {{"device", Describe(*device)},
         {"expect", "minutes at the first start, until the driver has cached them"}});
  }
  Result<Stream> created = Stream::Create();
  if (!created.ok()) return created.status();
  auto stream = std::make_unique<Stream>(std::move(*created));
  Decoder::Parts parts;
  WeightPacker packer(*stream, options.linear_format, options.isa, pool);
  if (options.config.stores_fp8 && options.linear_format == WeightFormat::kFp8E4M3)
    packer.KeepOthersThanFp8();
  const RopeTable rope = TableOf(options);
  Status loaded = LoadParts(options, *device, checkpoint, packer, pool, *stream, &parts);
  if (loaded.ok()) loaded = UploadRope(rope, *stream, &parts);
  // Also after an error: queued work still uses the parts' memory, the packer's and the table.
  const Status done = stream->Synchronize();
  DS_RETURN_IF_ERROR(loaded);
  DS_RETURN_IF_ERROR(done);
  Result<std::unique_ptr<Model>> model = MakeStepRunner(
      std::move(stream), std::move(parts),
      {.name = NameOfDevice(device->ordinal) + " " + device->name + " " + device->uuid,
       .limits = options.limits,
       .sizes = options.sizes});
  if (model.ok()) DS_RETURN_IF_ERROR(RunOneStep(**model));
  return model;
}

}  // namespace diffserve::cuda
