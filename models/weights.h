// The weights of a decoder, packed for the kernels in canonical head order (diff_spec.h). Everything is copied out of the
// checkpoint, whose files are not needed any more once LoadWeights has returned.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/linear.h"
#include "models/checkpoint.h"
#include "models/model_config.h"

namespace diffserve {

struct LayerWeights {
  std::vector<float> input_norm;      // [hidden_size]
  PackedLinear qkv;                   // hidden_size -> q_width + k_width + v_width
  PackedLinear attention_out;         // out_width -> hidden_size
  float lambda = 0;                   // LambdaKind::kPerLayer
  float out_scale = 1;                // of the attention's output: 1 - lambda_init for LambdaKind::kPerLayer
  PackedLinear lambda_proj;           // LambdaKind::kPerTokenHead: hidden_size -> num_q1_heads
  std::vector<float> sub_norm;        // SubNorm::kAffine: [v_dim]
  std::vector<float> post_attention_norm;  // [hidden_size]
  PackedLinear gate_up;               // hidden_size -> 2 * intermediate_size: gate, then up
  struct { float weight[3]; float bias; } poly_norm = {};  // MlpKind::kPolyNorm: of z^3, z^2 and z
  PackedLinear down;                  // intermediate_size -> hidden_size
};

struct DecoderWeights {
  Buffer embedding_memory;
  TensorView embedding;               // [vocab_size, hidden_size], of the model's dtype
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;      // [hidden_size]
  PackedLinear lm_head;               // hidden_size -> vocab_size
};

struct WeightSizes {
  int64_t num_parameters = 0;  // tied weights counted once
  size_t step_bytes = 0;       // what a decode step reads: all but the embedding table
  size_t memory_bytes = 0;     // what LoadWeights keeps, the embedding table included
};

// Checks the names, shapes and dtypes of all tensors of the model before any of their data is read.
Result<WeightSizes> CheckWeights(const ModelConfig& config, const Checkpoint& checkpoint, DType dtype);

// REQUIRES: CheckWeights has accepted the checkpoint; dtype is kFloat32 or kBFloat16.
Result<DecoderWeights> LoadWeights(const ModelConfig& config, Checkpoint& checkpoint, DType dtype, CpuIsa isa, ThreadPool& pool);

}  // namespace diffserve
