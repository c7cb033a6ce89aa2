// The weights of a decoder, the same for every backend, and the one table that says which tensors
// of a checkpoint each of them comes from. A checkpoint is checked, counted, read and converted
// by this table (weights.h, convert/tensor_names.h); a backend's packer says what holds a matrix
// and what a vector. Rows are in canonical head order (diff_spec.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/linear.h"
#include "models/model_config.h"

namespace diffserve {

// Of z^3, z^2 and z (rowwise.h).
struct PolyNormWeights {
  float weight[3] = {};
  float bias = 0;
};

template <typename Linear, typename Vector>
struct LayerWeights {
  Linear qkv;                  // hidden_size -> q_width + k_width + v_width
  Linear attention_out;        // out_width -> hidden_size
  Linear gate_up;              // hidden_size -> 2 * intermediate_size: gate, then up
  Linear down;                 // intermediate_size -> hidden_size
  Vector input_norm;           // [hidden_size]
  Vector post_attention_norm;  // [hidden_size]
  float lambda = 0;            // LambdaKind::kPerLayer
  float out_scale = 1;  // of the attention's output: 1 - lambda_init for LambdaKind::kPerLayer
  Linear lambda_proj;   // LambdaKind::kPerTokenHead: hidden_size -> num_q1_heads
  Vector sub_norm;      // SubNorm::kAffine: [v_dim]
  PolyNormWeights poly_norm;  // MlpKind::kPolyNorm
};

template <typename Table, typename Linear, typename Vector>
struct DecoderWeights {
  using Layer = LayerWeights<Linear, Vector>;

  Table embedding;  // [vocab_size, hidden_size]
  Linear lm_head;   // hidden_size -> vocab_size
  std::vector<Layer> layers;
  Vector final_norm;  // [hidden_size]

  // lambda of each layer; empty unless the config has LambdaKind::kPerLayer.
  std::vector<float> Lambdas(const ModelConfig& config) const {
    std::vector<float> lambdas;
    if (config.attention.lambda_kind != LambdaKind::kPerLayer) return lambdas;
    for (const Layer& layer : layers) lambdas.push_back(layer.lambda);
    return lambdas;
  }
};

// A linear layer of a checkpoint: NAME.weight [out, in] and, with has_bias, NAME.bias [out].
struct LinearTensors {
  std::string name;
  int64_t out_features = 0;
  int64_t in_features = 0;
  bool has_bias = false;
  // Brings the rows, in runs of head_dim, into canonical order; nullptr: as they are.
  const std::vector<int32_t>* head_order = nullptr;
};
struct VectorTensor {
  std::string name;
  int64_t count = 0;
};
using VectorTensors = std::vector<VectorTensor>;

// Calls for each weight of a layer
//   visit.Linear(WEIGHT, PARTS, OUTPUT, MAY_QUANTIZE)  a matrix of stacked parts, what type its
//                                                      products have, and whether it may be of a
//                                                      quantised format (true if left out)
//   visit.Vector(WEIGHT, TENSOR)         kept in float32
//   visit.Numbers(TENSORS, USE)          USE gets their values and sets what is computed of them
template <typename Layer, typename Visitor>
void VisitLayer(const ModelConfig& config, int index, Layer& layer, Visitor& visit) {
  const DiffSpec& spec = config.attention;
  const HeadOrder& order = config.head_order;
  const int hidden = config.hidden_size, inner = config.intermediate_size;
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const std::string attn = prefix + "self_attn.", mlp = prefix + "mlp.";
  using Parts = std::vector<LinearTensors>;

  visit.Linear(layer.qkv,
               Parts{{attn + "q_proj", spec.q_width(), hidden, config.qkv_bias, &order.q},
                     {attn + "k_proj", spec.k_width(), hidden, config.qkv_bias, &order.k},
                     {attn + "v_proj", spec.v_width(), hidden, config.qkv_bias, &order.v}},
               LinearOutput::kActivation);
  visit.Linear(layer.attention_out,
               Parts{{attn + config.attention_out_name, hidden, spec.out_width(),
                      config.attention_out_bias}},
               LinearOutput::kFloat32);
  visit.Linear(layer.gate_up,
               Parts{{mlp + "gate_proj", inner, hidden, config.mlp_bias},
                     {mlp + "up_proj", inner, hidden, config.mlp_bias}},
               LinearOutput::kActivation);
  visit.Linear(layer.down, Parts{{mlp + "down_proj", hidden, inner, config.mlp_bias}},
               LinearOutput::kFloat32);
  visit.Vector(layer.input_norm, VectorTensor{prefix + "input_layernorm.weight", hidden});
  visit.Vector(layer.post_attention_norm,
               VectorTensor{prefix + "post_attention_layernorm.weight", hidden});
  if (spec.lambda_kind == LambdaKind::kPerLayer) {
    // exp(lq1 . lk1) - exp(lq2 . lk2) + lambda_init (arXiv 2410.05258, eq. 2), in float32.
    VectorTensors vectors;
    for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"})
      vectors.push_back({attn + name, spec.head_dim});
    const float init = config.lambda_init[static_cast<size_t>(index)];
    visit.Numbers(vectors, [&](const std::vector<std::vector<float>>& values) {
      const auto exp_dot = [](const std::vector<float>& q, const std::vector<float>& k) {
        float sum = 0;
        for (size_t i = 0; i < q.size(); ++i) sum += q[i] * k[i];
        return std::exp(sum);
      };
      layer.lambda = exp_dot(values[0], values[1]) - exp_dot(values[2], values[3]) + init;
    });
    layer.out_scale = 1.0f - init;
  }
  if (spec.lambda_kind == LambdaKind::kPerTokenHead) {
    visit.Linear(layer.lambda_proj, Parts{{attn + "lambda_proj", spec.num_q1_heads, hidden}},
                 LinearOutput::kFloat32, /*may_quantize=*/false);
  }
  if (spec.sub_norm == SubNorm::kAffine)
    visit.Vector(layer.sub_norm, VectorTensor{attn + "subln.weight", spec.v_dim});
  if (config.mlp == MlpKind::kPolyNorm) {
    visit.Numbers(VectorTensors{{mlp + "act_fn.weight", 3}, {mlp + "act_fn.bias", 1}},
                  [&](const std::vector<std::vector<float>>& values) {
                    for (size_t i = 0; i < 3; ++i) layer.poly_norm.weight[i] = values[0][i];
                    layer.poly_norm.bias = values[1][0];
                  });
  }
}

// The same for what is outside of the layers; `embedding` and `lm_head` are where their tables lie.
template <typename Weights, typename Visitor>
void VisitWeights(const ModelConfig& config, const std::string& embedding,
                  const std::string& lm_head, Weights& weights, Visitor& visit) {
  const int hidden = config.hidden_size;
  visit.Tables(weights.embedding, LinearTensors{embedding, config.vocab_size, hidden},
               weights.lm_head, LinearTensors{lm_head, config.vocab_size, hidden});
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  for (int l = 0; l < config.num_layers; ++l)
    VisitLayer(config, l, weights.layers[static_cast<size_t>(l)], visit);
  visit.Vector(weights.final_norm, VectorTensor{"model.norm.weight", hidden});
}

}  // namespace diffserve
