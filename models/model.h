// SPDX-License-Identifier: Apache-2.0
// Model: a loaded checkpoint that can run steps over a batch of sequences, on the CPU
// (models/decoder.h) or on a CUDA device (models/step_runner_cuda.h). One thread at a time uses it:
// first the loading thread, then the engine's.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/logit_quant.h"
#include "kernels/base/cpu_isa.h"
#include "kernels/base/status.h"
#include "kernels/base/thread_pool.h"
#include "kernels/mamba/state_slot_use.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/weight_codec.h"
#include "models/kv_cache.h"
#include "models/load_progress.h"
#include "models/model_config.h"
#include "models/weight_digest.h"

namespace diffserve {

class LayerObserver;

enum class Device { kCpu, kCuda };

// Limits of one step. A device allocates memory for them when the model is loaded; the CPU's
// buffers grow as needed.
struct StepLimits {
  int num_tokens = 2048;
  int num_sequences = 256;
  int max_model_len = 0;  // tokens per sequence; 0: the config's limit
  // Device memory for partial results of decode attention, unless a single token needs more. A step
  // whose contexts sum to more than fits is cut into passes.
  size_t attention_partial_bytes_max = size_t{256} << 20;
  bool has_code_pages = true;  // false: no step reads KV pages of int8, int4 or fp8
  // Device memory for such pages as bfloat16 (WidenedPages), unless one group of one prompt needs
  // more. A step's prompts that need more are computed one after the other.
  size_t widened_bytes_max = size_t{64} << 20;
};

struct ModelOptions {
  std::string model_dir;
  Device device = Device::kCpu;
  int gpu = 0;  // CUDA's number of the device
  // nullopt: the checkpoint's (float16 becomes float32); on a CUDA device bfloat16
  std::optional<WeightFormat> weight_format;
  // Format of linear layers; nullopt: weight_format, or the format of a packed directory. A packed
  // directory's must be its own, and on the CPU its weight_format too.
  std::optional<WeightFormat> linear_format;
  bool dummy_weights = false;  // --load-format dummy
  uint64_t seed = 0;           // of the dummy weights
  CpuIsa isa = kBaseCpuIsa;
  LogitQuant logit_quant = {};  // for attention
  int max_positions = 0;        // length of the rope table; 0: the config's
  StepLimits limits;
  // CUDA: a token's bits do not depend on the batch (on the CPU they never do).
  bool batch_invariant = false;
  LoadProgress* progress = nullptr;  // Model::Load reports to it, if set
  // Model::Load digests the weights that it reads, if set; new for each load. Dummy weights are not
  // read.
  std::shared_ptr<WeightDigest> digest;
  // Used instead of config.json, so that a plan and the model that is loaded by it have the same.
  std::optional<std::string> config_text;
  bool is_estimate = false;  // InspectModel only: the weights need not fit the machine's memory
};

// The properties of a model directory that are known without reading its weights.
struct ModelSummary {
  ModelConfig config;
  std::string config_text;  // that of config.json
  WeightFormat weight_format = WeightFormat::kFloat32;
  WeightFormat linear_format = WeightFormat::kFloat32;
  int64_t num_parameters = 0;
  size_t weight_bytes = 0;                  // read by a decode step
  size_t memory_bytes = 0;                  // resident: weights, embedding table, rope table
  size_t activation_bytes_per_token = 0;    // for a step's batch on the CPU, without logits
  size_t device_step_bytes = 0;             // on a CUDA device, for steps within the StepLimits
  std::vector<std::string> unused_tensors;  // checkpoint tensors that the model does not use
  std::vector<std::string> unused_files;    // Checkpoint::UnusedFiles
};
// Checks everything that Model::Load checks before it reads weights, with the same messages.
Result<ModelSummary> InspectModel(const ModelOptions& options);
// Whether it is a directory with a config.json of a family that is served; its weights are not
// looked at.
Status CheckModelDirectory(const std::string& model_dir);
// For the end of an error about too little memory: the formats of linear layers in which the
// weights would take at most `bytes_max`, "; in int4 the weights would take 7.1 GiB
// (--quantization)". Empty: no other format is smaller.
std::string FormatAdvice(const ModelOptions& options, double bytes_max);

// The dtype a checkpoint is served in by default. A float16 one is served in float32, which holds
// every float16.
constexpr DType DTypeServed(DType checkpoint) {
  return checkpoint == DType::kFloat16 ? DType::kFloat32 : checkpoint;
}

// Maximum number of logit elements requested at once (but at least one row). A prompt's logits are
// scored in slices of this size.
inline constexpr int64_t kMaxLogitElements = int64_t{1} << 24;

// One step's work: tokens of sequences, each sequence's together. Activations have one row per
// token.
struct Batch {
  std::vector<int32_t> tokens;  // [tokens]; -1 - i: the token that entry i of the previous step
                                // drew
  std::vector<SequenceTokens> sequences;  // cover all tokens; pages already have room for every one
  std::vector<int32_t> logit_rows;        // tokens whose logits are wanted, ascending
  // [sequences], if layers have states: the slot that each sequence reads, unless it begins in this
  // step, and the slot it writes. Empty: sequence i has slot i.
  std::vector<StateSlotUse> states = {};
  // [sequences]: the number of each one's first tokens that belong to its prompt. Empty: all. A
  // device computes prompt tokens and generated tokens by different kernels, so a token's kernel
  // must not depend on how the work was cut into steps.
  std::vector<int32_t> num_prompt_tokens = {};
  // [logit_rows]: the work for each row of logits. Empty: the logits are only kept for Logits.
  std::vector<SampleTask> sample_rows = {};
  std::vector<LogitAdjustment> adjustments = {};  // for sample_rows
  std::vector<uint32_t> masks = {};               // for sample_rows, as SampleArgs::masks
  bool is_collected = false;          // Collect is called for this step even without sample_rows
  LayerObserver* observer = nullptr;  // sees each layer, if set
};

// The layout of a KvCache of that size for the model.
KvCache::Layout LayoutOf(const ModelConfig& config, std::vector<KvFormat> layers,
                         const KvCacheSize& size);

class Model {
 public:
  // Every error is one line with file, tensor or key, found and expected.
  static Result<std::unique_ptr<Model>> Load(const ModelOptions& options, ThreadPool& pool);
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual WeightFormat weight_format() const = 0;
  DType dtype() const { return DTypeOf(weight_format()); }

  // Maximum number of launched steps that are not yet collected.
  virtual int steps_in_flight_max() const { return 1; }
  // The memory of KV pages and, if layers have states, of their slots, for Forward, in the device's
  // own arrangement. `layers`: one format per layer with its own K and V, or one for all. Error:
  // kResourceExhausted with the numbers.
  virtual Result<KvCache> MakeKvCache(std::vector<KvFormat> layers,
                                      const KvCacheSize& size) const = 0;
  Result<KvCache> MakeUniformKvCache(const KvFormat& format, const KvCacheSize& size) const {
    return MakeKvCache(std::vector<KvFormat>(static_cast<size_t>(config().num_kv_layers()), format),
                       size);
  }
  // Launches the batch: appends K and V to the sequences' pages, keeps the final normalised states
  // of logit_rows for Logits, and draws or scores as sample_rows says. Errors are the device's;
  // after kDeviceLost every later call fails. REQUIRES: tokens in [0, vocab_size), or drawn by the
  // previous step; positions below max_positions; within the StepLimits.
  virtual Status Forward(const Batch& batch, KvCache& kv) = 0;
  // Waits for the oldest launched step that has sample_rows or is_collected, and returns the
  // results of its rows.
  virtual Result<std::vector<SampledToken>> Collect() = 0;
  // Logits [count, vocab_size] of logit_rows[first, first + count) of the last Forward, valid until
  // the next call of either.
  virtual Result<std::span<const float>> Logits(int first, int count) = 0;
  // Makes what a device makes at first use, by steps that may write to all pages and states of
  // `kv`. Graphs are for this cache only; with another, a further call makes those again. REQUIRES:
  // no launched step is uncollected.
  virtual Status WarmUp(KvCache& /*kv*/) { return Status(); }

  // lambda of each layer (float32); empty for plain attention.
  virtual std::vector<float> Lambdas() const = 0;
  // Bytes of packed weights that a decode step reads (without the embedding table).
  virtual size_t weight_bytes() const = 0;
  virtual int64_t num_parameters() const = 0;
};

}  // namespace diffserve
