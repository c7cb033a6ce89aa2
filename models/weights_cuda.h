// The weights of a decoder on a CUDA device, bfloat16 matrices as checkpoints store them, rows in
// canonical head order.
#pragma once

#include <vector>

#include "kernels/ops/weight_packer_cuda.h"
#include "models/checkpoint.h"
#include "models/weights.h"

namespace diffserve::cuda {

struct DeviceLayer {
  DeviceBuffer input_norm;  // float32 [hidden_size], as all norms
  PackedLinear qkv;
  PackedLinear attention_out;
  float lambda = 0;
  float out_scale = 1;
  PackedLinear lambda_proj;
  DeviceBuffer sub_norm;
  DeviceBuffer post_attention_norm;
  PackedLinear gate_up;
  PolyNormWeights poly_norm;
  PackedLinear down;
};

struct DeviceWeights {
  EmbeddingTable embedding;
  PackedLinear lm_head;  // the embedding's memory where the weights are tied
  std::vector<DeviceLayer> layers;
  DeviceBuffer final_norm;
};

// REQUIRES: CheckWeights has accepted the checkpoint.
Result<DeviceWeights> UploadWeights(const ModelConfig& config, Checkpoint& checkpoint,
                                    const Stream& stream);

}  // namespace diffserve::cuda
