// SPDX-License-Identifier: Apache-2.0
// The weights of a decoder, the same for every backend, and the one table of the checkpoint tensors
// that each is made from. A checkpoint is checked, counted, read and converted by this table
// (weights.h, convert/tensor_names.h). A backend's packer defines the types that hold matrices and
// vectors. Rows are in canonical head order (diff_spec.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/mamba/causal_conv.h"
#include "kernels/mamba/selective_scan.h"
#include "kernels/ops/linear.h"
#include "models/model_config.h"

namespace diffserve {

// For z^3, z^2 and z (rowwise.h).
struct PolyNormWeights {
  float weight[3] = {};
  float bias = 0;
};

// Members that a layer's mixer does not use are empty.
template <typename Linear, typename Vector>
struct LayerWeights {
  Vector input_norm;           // [hidden_size]
  Vector input_norm_bias;      // NormKind::kLayerNorm: [hidden_size]
  Linear mixer_out;            // out_width or inner -> hidden_size
  Vector post_attention_norm;  // [hidden_size], before the MLP
  Vector post_attention_norm_bias;
  Linear gate_up;             // hidden_size -> 2 * intermediate_size: gate, then up
  Linear down;                // intermediate_size -> hidden_size
  PolyNormWeights poly_norm;  // MlpKind::kPolyNorm

  // MixerKind::kAttention
  // hidden_size -> q_width, plus k_width + v_width if the layer has its own K and V.
  Linear qkv;
  float lambda = 0;     // LambdaKind::kPerLayer
  float out_scale = 1;  // for the attention's output: 1 - lambda_init for LambdaKind::kPerLayer
  Linear lambda_proj;   // LambdaKind::kPerTokenHead: hidden_size -> num_q1_heads
  Vector sub_norm;      // SubNorm::kAffine: [v_dim]

  // MixerKind::kMamba; MixerKind::kGatedMemory has only in_proj
  Linear in_proj;     // hidden_size -> 2 * inner: x, then z; kGatedMemory: -> inner
  Vector conv_taps;   // [conv_width, inner]
  Vector conv_bias;   // [inner]
  Linear x_proj;      // inner -> dt_rank + 2 * state_dim: dt, B, C
  Linear dt_proj;     // dt_rank -> inner
  Vector dt_bias;     // [inner]
  Vector scan_rates;  // [state_dim, inner]: -exp(A_log)
  Vector scan_skip;   // [inner]: D
};

template <typename Table, typename Linear, typename Vector>
struct DecoderWeights {
  using Layer = LayerWeights<Linear, Vector>;

  Table embedding;  // [vocab_size, hidden_size]
  Linear lm_head;   // hidden_size -> vocab_size
  std::vector<Layer> layers;
  Vector final_norm;       // [hidden_size]
  Vector final_norm_bias;  // NormKind::kLayerNorm

  // lambda of each layer, 0 for one without attention. Empty unless the config has
  // LambdaKind::kPerLayer.
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
  // Permutes the rows, in runs of head_dim, into canonical order; nullptr: unchanged.
  const std::vector<int32_t>* head_order = nullptr;
  bool has_bias_apart = false;  // NAME.bias exists, but is a separate weight
};
struct VectorTensor {
  std::string name;
  std::vector<int64_t> shape;
  // Formula applied to the values, if it can overflow though they are finite; "": it cannot.
  std::string formula = "";
  int64_t count() const {
    int64_t product = 1;
    for (int64_t size : shape) product *= size;
    return product;
  }
};
using VectorTensors = std::vector<VectorTensor>;

// A norm: NAME.weight and, for a LayerNorm, NAME.bias.
template <typename Vector, typename Visitor>
void VisitNorm(const ModelConfig& config, const std::string& name, Vector& weight, Vector& bias,
               Visitor& visit) {
  visit.Vector(weight, VectorTensor{name + ".weight", {config.hidden_size}});
  if (config.norm == NormKind::kLayerNorm)
    visit.Vector(bias, VectorTensor{name + ".bias", {config.hidden_size}});
}

template <typename Layer, typename Visitor>
void VisitAttention(const ModelConfig& config, int index, Layer& layer, Visitor& visit) {
  const DiffSpec& spec = config.attention;
  const HeadOrder& order = config.head_order;
  const TensorNames& names = config.names;
  const int hidden = config.hidden_size;
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const std::string attn = prefix + names.attention, lambdas = prefix + names.lambdas;
  const bool has_kv = !config.layers[static_cast<size_t>(index)].shares_kv;
  using Parts = std::vector<LinearTensors>;

  const int all = spec.q_width() + spec.k_width() + spec.v_width();
  const Parts parts =
      names.qkv.empty()
          ? Parts{{attn + "q_proj", spec.q_width(), hidden, config.qkv_bias, &order.q},
                  {attn + "k_proj", spec.k_width(), hidden, config.qkv_bias, &order.k},
                  {attn + "v_proj", spec.v_width(), hidden, config.qkv_bias, &order.v}}
      : has_kv ? Parts{{attn + names.qkv, all, hidden, config.qkv_bias, &order.stacked}}
               : Parts{{attn + names.qkv, spec.q_width(), hidden, config.qkv_bias, &order.q}};
  visit.Linear(layer.qkv, parts, LinearOutput::kActivation);
  visit.Linear(
      layer.mixer_out,
      Parts{{attn + names.attention_out, hidden, spec.out_width(), config.attention_out_bias}},
      LinearOutput::kFloat32);
  if (spec.lambda_kind == LambdaKind::kPerLayer) {
    // exp(lq1 . lk1) - exp(lq2 . lk2) + lambda_init (arXiv 2410.05258, eq. 2), in float32.
    VectorTensors vectors;
    for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"})
      vectors.push_back({lambdas + name, {spec.head_dim}});
    const float init = config.lambda_init[static_cast<size_t>(index)];
    visit.Numbers(vectors, [&layer, init](const std::vector<std::vector<float>>& values) {
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
    visit.Vector(layer.sub_norm, VectorTensor{lambdas + "subln.weight", {spec.v_dim}});
}

template <typename Layer, typename Visitor>
void VisitMamba(const ModelConfig& config, int index, Layer& layer, Visitor& visit) {
  const MambaSpec& mamba = config.mamba;
  const std::string name = "model.layers." + std::to_string(index) + "." + config.names.attention;
  const int hidden = config.hidden_size;
  const bool scans = config.layers[static_cast<size_t>(index)].mixer == MixerKind::kMamba;
  using Parts = std::vector<LinearTensors>;

  visit.Linear(layer.in_proj, Parts{{name + "in_proj", (scans ? 2 : 1) * mamba.inner, hidden}},
               LinearOutput::kActivation);
  visit.Linear(layer.mixer_out, Parts{{name + "out_proj", hidden, mamba.inner}},
               LinearOutput::kFloat32);
  if (!scans) return;
  visit.Vector(layer.conv_taps,
               VectorTensor{name + "conv1d.weight", {mamba.inner, 1, mamba.conv_width}},
               [mamba](const std::vector<float>& weight) {
                 return ConvTaps(weight, mamba.inner, mamba.conv_width);
               });
  visit.Vector(layer.conv_bias, VectorTensor{name + "conv1d.bias", {mamba.inner}});
  visit.Linear(layer.x_proj,
               Parts{{name + "x_proj", mamba.dt_rank + 2 * mamba.state_dim, mamba.inner}},
               LinearOutput::kActivation, /*may_quantize=*/false);
  visit.Linear(layer.dt_proj,
               Parts{{.name = name + "dt_proj",
                      .out_features = mamba.inner,
                      .in_features = mamba.dt_rank,
                      .has_bias_apart = true}},
               LinearOutput::kActivation, /*may_quantize=*/false);
  visit.Vector(layer.dt_bias, VectorTensor{name + "dt_proj.bias", {mamba.inner}});
  visit.Vector(layer.scan_rates,
               VectorTensor{name + "A_log", {mamba.inner, mamba.state_dim}, "-exp(A_log)"},
               [mamba](const std::vector<float>& a_log) {
                 return ScanRates(a_log, mamba.inner, mamba.state_dim);
               });
  visit.Vector(layer.scan_skip, VectorTensor{name + "D", {mamba.inner}});
}

template <typename Layer, typename Visitor>
void VisitMlp(const ModelConfig& config, int index, Layer& layer, Visitor& visit) {
  const TensorNames& names = config.names;
  const int hidden = config.hidden_size, inner = config.intermediate_size;
  const std::string mlp = "model.layers." + std::to_string(index) + ".mlp.";
  using Parts = std::vector<LinearTensors>;

  visit.Linear(layer.gate_up,
               names.gate_up.empty()
                   ? Parts{{mlp + "gate_proj", inner, hidden, config.mlp_bias},
                           {mlp + "up_proj", inner, hidden, config.mlp_bias}}
                   : Parts{{mlp + names.gate_up, 2 * inner, hidden, config.mlp_bias}},
               LinearOutput::kActivation);
  visit.Linear(layer.down, Parts{{mlp + names.down, hidden, inner, config.mlp_bias}},
               LinearOutput::kFloat32);
  if (config.mlp == MlpKind::kPolyNorm) {
    visit.Numbers(VectorTensors{{mlp + "act_fn.weight", {3}}, {mlp + "act_fn.bias", {1}}},
                  [&layer](const std::vector<std::vector<float>>& values) {
                    for (size_t i = 0; i < 3; ++i) layer.poly_norm.weight[i] = values[0][i];
                    layer.poly_norm.bias = values[1][0];
                  });
  }
}

// Calls for each weight of a layer
//   visit.Linear(WEIGHT, PARTS, OUTPUT, MAY_QUANTIZE)  a matrix of stacked parts, the type of its
//                                                      products, and whether a quantised format is
//                                                      allowed (default true)
//   visit.Vector(WEIGHT, TENSOR, MADE)   kept in float32, converted by MADE (default: unchanged)
//   visit.Numbers(TENSORS, USE)          USE gets their values and sets what is computed from them
template <typename Layer, typename Visitor>
void VisitLayer(const ModelConfig& config, int index, Layer& layer, Visitor& visit) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const bool attends = config.layers[static_cast<size_t>(index)].mixer == MixerKind::kAttention;
  if (attends) VisitAttention(config, index, layer, visit);
  if (!attends) VisitMamba(config, index, layer, visit);
  VisitMlp(config, index, layer, visit);
  VisitNorm(config, prefix + "input_layernorm", layer.input_norm, layer.input_norm_bias, visit);
  VisitNorm(config, prefix + "post_attention_layernorm", layer.post_attention_norm,
            layer.post_attention_norm_bias, visit);
}

// The same for the weights outside the layers. `embedding` and `lm_head` name their tables.
template <typename Weights, typename Visitor>
void VisitWeights(const ModelConfig& config, const std::string& embedding,
                  const std::string& lm_head, Weights& weights, Visitor& visit) {
  const int hidden = config.hidden_size;
  visit.Tables(weights.embedding, LinearTensors{embedding, config.vocab_size, hidden},
               weights.lm_head, LinearTensors{lm_head, config.vocab_size, hidden});
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  for (int l = 0; l < config.num_layers; ++l)
    VisitLayer(config, l, weights.layers[static_cast<size_t>(l)], visit);
  VisitNorm(config, config.names.final_norm, weights.final_norm, weights.final_norm_bias, visit);
}

}  // namespace diffserve
