// Model: a loaded checkpoint that can run forward passes over a batch of sequences. The engine's rank thread owns it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/status.h"
#include "kernels/base/thread_pool.h"
#include "models/kv_cache.h"
#include "models/model_config.h"

namespace diffserve {

struct ModelOptions {
  std::string model_dir;
  std::optional<DType> dtype;  // weights; nullopt: as the checkpoint (float16 becomes float32)
  bool dummy_weights = false;  // --load-format dummy
  uint64_t seed = 0;           // of the dummy weights
  CpuIsa isa = CpuIsa::kAvx2;
  int max_positions = 0;       // length of the rope table; 0: the config's
};

// What can be told of a model directory without reading its weights.
struct ModelSummary {
  ModelConfig config;
  DType dtype = DType::kFloat32;
  int64_t num_parameters = 0;
  size_t weight_bytes = 0;  // read by a decode step
  size_t memory_bytes = 0;  // kept in memory: weights, embedding table, rope table
  size_t activation_bytes_per_row = 0;  // of a step's batch, logits not counted
};
// Checks everything that Model::Load checks before it reads weights, with the same words.
Result<ModelSummary> InspectModel(const ModelOptions& options);

// Logits of at most this many elements (but of one row at least) are asked for at once; a prompt's are scored in slices of it.
inline constexpr int64_t kMaxLogitElements = int64_t{1} << 24;

// One step's work, row-major: row r is one token of one sequence.
struct Batch {
  std::vector<int32_t> tokens;          // [rows]
  std::vector<SequenceRows> sequences;  // cover all rows; pages already hold room for every row
  std::vector<int32_t> logit_rows;      // rows whose logits are wanted, ascending
};

class Model {
 public:
  // Every refusal is one line that names file, tensor or key, found and expected.
  static Result<std::unique_ptr<Model>> Load(const ModelOptions& options, ThreadPool& pool);
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual DType dtype() const = 0;
  // Runs the batch: appends K and V to the sequences' pages and keeps the final normalised state of logit_rows for Logits.
  // Buffers grow to the largest batch seen.
  // REQUIRES: tokens in [0, vocab_size), positions below max_positions.
  virtual void Forward(const Batch& batch, KvCache& kv) = 0;
  // Logits [count, vocab_size] of logit_rows[first, first + count) of the last Forward, valid until the next call of either.
  virtual std::span<const float> Logits(int first, int count) = 0;

  // lambda of each layer (float32); empty for plain attention.
  virtual std::vector<float> Lambdas() const = 0;
  virtual size_t weight_bytes() const = 0;    // packed weights that a decode step reads (embedding table not counted)
  virtual int64_t num_parameters() const = 0;
};

}  // namespace diffserve
