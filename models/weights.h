// The weights of a decoder: what is read of a checkpoint, in canonical head order (diff_spec.h) and
// the same for every backend, and what the CPU keeps of it, packed for its kernels. Everything is
// copied out of the checkpoint, whose files are not needed any more once LoadWeights has returned.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/weight_packer.h"
#include "models/checkpoint.h"
#include "models/model_config.h"

namespace diffserve {

// Of z^3, z^2 and z (rowwise.h).
struct PolyNormWeights {
  float weight[3] = {};
  float bias = 0;
};

// A layer as the checkpoint has it. Views hold until Checkpoint::ReleaseMemory.
struct LayerTensors {
  std::vector<float> input_norm;          // [hidden_size]
  std::vector<LinearPart> qkv;            // hidden_size -> q_width + k_width + v_width
  std::vector<LinearPart> attention_out;  // out_width -> hidden_size
  float lambda = 0;                       // LambdaKind::kPerLayer
  float out_scale = 1;  // of the attention's output: 1 - lambda_init for LambdaKind::kPerLayer
  std::vector<LinearPart> lambda_proj;     // LambdaKind::kPerTokenHead: hidden_size -> num_q1_heads
  std::vector<float> sub_norm;             // SubNorm::kAffine: [v_dim]
  std::vector<float> post_attention_norm;  // [hidden_size]
  std::vector<LinearPart> gate_up;         // hidden_size -> 2 * intermediate_size: gate, then up
  PolyNormWeights poly_norm;               // MlpKind::kPolyNorm
  std::vector<LinearPart> down;            // intermediate_size -> hidden_size
};

struct OuterTensors {
  TensorView embedding;  // [vocab_size, hidden_size]
  TensorView lm_head;    // likewise; its data is the embedding's where the two are one tensor
  std::vector<float> final_norm;  // [hidden_size]
};

// Reading of a checkpoint that CheckWeights has accepted; the memory is the checkpoint's until its
// ReleaseMemory.
Result<OuterTensors> ReadOuterTensors(const ModelConfig& config, Checkpoint& checkpoint);
Result<LayerTensors> ReadLayerTensors(const ModelConfig& config, int layer, Checkpoint& checkpoint);

// The CPU's.
struct LayerWeights {
  std::vector<float> input_norm;    // [hidden_size]
  cpu::PackedLinear qkv;            // hidden_size -> q_width + k_width + v_width
  cpu::PackedLinear attention_out;  // out_width -> hidden_size
  float lambda = 0;
  float out_scale = 1;
  cpu::PackedLinear lambda_proj;           // LambdaKind::kPerTokenHead: hidden_size -> num_q1_heads
  std::vector<float> sub_norm;             // SubNorm::kAffine: [v_dim]
  std::vector<float> post_attention_norm;  // [hidden_size]
  cpu::PackedLinear gate_up;               // hidden_size -> 2 * intermediate_size: gate, then up
  PolyNormWeights poly_norm;               // MlpKind::kPolyNorm
  cpu::PackedLinear down;                  // intermediate_size -> hidden_size
};

struct DecoderWeights {
  cpu::EmbeddingTable embedding;  // [vocab_size, hidden_size]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden_size]
  cpu::PackedLinear lm_head;      // hidden_size -> vocab_size
};

struct WeightSizes {
  int64_t num_parameters = 0;  // tied weights counted once
  size_t step_bytes = 0;       // what a decode step reads: all but the embedding table
  size_t memory_bytes = 0;     // what is kept, the embedding table included
};

// Checks the names, shapes and dtypes of all tensors of the model before any of their data is read.
// `packs_tied_head`: a tied output projection is kept a second time.
Result<WeightSizes> CheckWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                 WeightFormat format, bool packs_tied_head = true);

// REQUIRES: CheckWeights has accepted the checkpoint.
Result<DecoderWeights> LoadWeights(const ModelConfig& config, Checkpoint& checkpoint,
                                   cpu::WeightPacker packer);

}  // namespace diffserve
