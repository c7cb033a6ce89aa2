// Model: a loaded checkpoint that can run steps over a batch of sequences, on the CPU
// (models/decoder.h) or on a CUDA device (models/step_runner_cuda.h). One thread at a time uses it:
// the one that loads it, then the engine's.
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

namespace diffserve {

class LayerObserver;

enum class Device { kCpu, kCuda };

// What one step may hold at most. A device takes its memory for it when the model is loaded; the
// CPU's buffers grow as needed.
struct StepLimits {
  int num_tokens = 2048;
  int num_sequences = 256;
  int max_model_len = 0;  // tokens of a sequence; 0: the config's
  // A device's memory for partial results of decode attention, unless a single token needs more: a
  // step whose contexts sum to more than this holds is cut into passes.
  size_t attention_partial_bytes_max = size_t{256} << 20;
};

struct ModelOptions {
  std::string model_dir;
  Device device = Device::kCpu;
  // nullopt: as the checkpoint (float16 becomes float32), on a CUDA device bfloat16
  std::optional<WeightFormat> weight_format;
  // Of linear layers; nullopt: weight_format, or what the directory is packed in. Quantised formats
  // are the CPU's. Of a packed directory both formats are what it has, or refused.
  std::optional<WeightFormat> linear_format;
  bool dummy_weights = false;  // --load-format dummy
  uint64_t seed = 0;           // of the dummy weights
  CpuIsa isa = CpuIsa::kAvx2;
  LogitQuant logit_quant = {};  // of attention
  int max_positions = 0;        // length of the rope table; 0: the config's
  StepLimits limits;
  bool batch_invariant = false;      // CUDA: a token's bits do not depend on the batch (the CPU's
                                     // never do)
  LoadProgress* progress = nullptr;  // told by Model::Load, if there is one
};

// What can be told of a model directory without reading its weights.
struct ModelSummary {
  ModelConfig config;
  WeightFormat weight_format = WeightFormat::kFloat32;
  WeightFormat linear_format = WeightFormat::kFloat32;
  int64_t num_parameters = 0;
  size_t weight_bytes = 0;                // read by a decode step
  size_t memory_bytes = 0;                // kept in memory: weights, embedding table, rope table
  size_t activation_bytes_per_token = 0;  // of a step's batch on the CPU, logits not counted
  size_t device_step_bytes = 0;           // taken on a CUDA device for steps within the StepLimits
  std::vector<std::string> unused_tensors;  // of the checkpoint, that the model has no place for
};
// Checks everything that Model::Load checks before it reads weights, with the same words.
Result<ModelSummary> InspectModel(const ModelOptions& options);

// What a checkpoint is served in unless another dtype is asked for: a float16 one in float32, which
// holds every float16.
constexpr DType DTypeServed(DType checkpoint) {
  return checkpoint == DType::kFloat16 ? DType::kFloat32 : checkpoint;
}

// Logits of at most this many elements (but of one row at least) are asked for at once; a prompt's
// are scored in slices of it.
inline constexpr int64_t kMaxLogitElements = int64_t{1} << 24;

// One step's work: tokens of sequences, those of each together. Activations are one row a token.
struct Batch {
  std::vector<int32_t> tokens;  // [tokens]; -1 - i: the token that entry i of the step before drew
  std::vector<SequenceTokens> sequences;  // cover all tokens; pages already hold room for every one
  std::vector<int32_t> logit_rows;        // tokens whose logits are wanted, ascending
  // [sequences], where layers have states: what each reads, unless it begins in this step, and
  // writes. Empty: sequence i has slot i.
  std::vector<StateSlotUse> states = {};
  // [sequences]: how many of the first tokens of each are its prompt's. Empty: all. A device
  // computes tokens of a prompt and generated ones by different kernels, so which one a token meets
  // must not depend on how the work was cut into steps.
  std::vector<int32_t> num_prompt_tokens = {};
  // [logit_rows]: what to do with each row of logits; empty: they are only kept for Logits.
  std::vector<SampleTask> sample_rows = {};
  std::vector<LogitAdjustment> adjustments = {};  // of sample_rows
  std::vector<uint32_t> masks = {};               // of sample_rows, as SampleArgs::masks
  bool is_collected = false;  // Collect is called for this step though it has no sample_rows
  LayerObserver* observer = nullptr;  // told of each layer, if there is one; the CPU's
};

// What a KvCache of that size is for the model.
KvCache::Layout LayoutOf(const ModelConfig& config, std::vector<KvFormat> layers,
                         const KvCacheSize& size);

class Model {
 public:
  // Every refusal is one line that names file, tensor or key, found and expected.
  static Result<std::unique_ptr<Model>> Load(const ModelOptions& options, ThreadPool& pool);
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual WeightFormat weight_format() const = 0;
  DType dtype() const { return DTypeOf(weight_format()); }

  // Steps that may be launched before the first of them is collected.
  virtual int steps_in_flight_max() const { return 1; }
  // The memory of KV pages and, if layers have states, of slots for those, for Forward, in the
  // device's own arrangement; a format for each layer with K and V of its own, or one for all.
  // Error: kResourceExhausted with the numbers.
  virtual Result<KvCache> MakeKvCache(std::vector<KvFormat> layers,
                                      const KvCacheSize& size) const = 0;
  Result<KvCache> MakeUniformKvCache(const KvFormat& format, const KvCacheSize& size) const {
    return MakeKvCache(std::vector<KvFormat>(static_cast<size_t>(config().num_kv_layers()), format),
                       size);
  }
  // Launches the batch: appends K and V to the sequences' pages, keeps the final normalised state
  // of logit_rows for Logits, and draws or scores where sample_rows says so. Errors are the
  // device's; one with kUnavailable is the end of it. REQUIRES: tokens in [0, vocab_size), or drawn
  // by the step before; positions below max_positions; within the StepLimits.
  virtual Status Forward(const Batch& batch, KvCache& kv) = 0;
  // Waits for the oldest launched step that has sample_rows or is_collected: what its rows came to.
  virtual Result<std::vector<SampledToken>> Collect() = 0;
  // Logits [count, vocab_size] of logit_rows[first, first + count) of the last Forward, valid until
  // the next call of either.
  virtual Result<std::span<const float>> Logits(int first, int count) = 0;

  // lambda of each layer (float32); empty for plain attention.
  virtual std::vector<float> Lambdas() const = 0;
  virtual size_t weight_bytes() const = 0;  // packed weights that a decode step reads (embedding
                                            // table not counted)
  virtual int64_t num_parameters() const = 0;
};

}  // namespace diffserve
