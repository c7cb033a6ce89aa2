// The weights of a decoder on a CUDA device, bfloat16 matrices as checkpoints store them, rows in
// canonical head order.
#pragma once

#include <vector>

#include "kernels/base/cuda/memory.h"
#include "models/checkpoint.h"
#include "models/weights.h"

namespace diffserve::cuda {

struct DeviceLinear {
  int in_features = 0;
  int out_features = 0;
  DeviceBuffer weight;  // bfloat16 [out_features, in_features]
  DeviceBuffer bias;    // [out_features] of the output's dtype; empty: none
};

struct DeviceLayer {
  DeviceBuffer input_norm;  // float32 [hidden_size], as all norms
  DeviceLinear qkv;
  DeviceLinear attention_out;
  float lambda = 0;
  float out_scale = 1;
  DeviceLinear lambda_proj;
  DeviceBuffer sub_norm;
  DeviceBuffer post_attention_norm;
  DeviceLinear gate_up;
  PolyNormWeights poly_norm;
  DeviceLinear down;
};

struct DeviceWeights {
  DeviceBuffer embedding;  // bfloat16 [vocab_size, hidden_size]
  DeviceBuffer lm_head;    // likewise; empty: the embedding is it
  std::vector<DeviceLayer> layers;
  DeviceBuffer final_norm;
  const uint16_t* lm_head_rows() const {
    return lm_head.data() == nullptr ? embedding.as<uint16_t>() : lm_head.as<uint16_t>();
  }
};

// Converts to bfloat16 in pinned memory, a piece while the one before is copied. REQUIRES:
// CheckWeights has accepted the checkpoint.
Result<DeviceWeights> UploadWeights(const ModelConfig& config, Checkpoint& checkpoint,
                                    const Stream& stream);

}  // namespace diffserve::cuda
