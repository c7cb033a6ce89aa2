// SPDX-License-Identifier: Apache-2.0
// Diff Transformer as its authors wrote it (microsoft/unilm, Diff-Transformer), first version.
// config.json counts differential heads: h output heads are 2h query heads of width head_dim. Heads
// are paired side by side. Output head i is query head 2i minus lambda times query head 2i + 1. Key
// heads 2j and 2j + 1 are K1 and K2 of group j, and value head j has width 2 head_dim. With grouped
// queries output head i reads group i / (h / h_kv), as in the authors' flash-attention files.
#include "models/families/family.h"
#include "models/families/heads.h"

namespace diffserve {
namespace {

constexpr float kUnilmSubNormEps = 1e-5f;  // a constant in the authors' code, whatever rms_norm_eps
                                           // is

// "exp": 0.8 - 0.6 exp(-0.3 layer). A number: the value in every layer (the paper's ablation).
std::vector<float> ReadLambdaInit(ConfigReader& json, int num_layers) {
  if (!json.Has("lambda_init") || json.IsString("lambda_init")) {
    if (json.String("lambda_init", "exp") != "exp")
      json.Refuse("lambda_init", "\"exp\" or a number");
    return ExponentialLambdaInit(0, num_layers);
  }
  const float constant = static_cast<float>(json.Number("lambda_init", std::nullopt, -1, 1));
  return std::vector<float>(static_cast<size_t>(num_layers), constant);
}

void ConfigureDiffTransformer(ConfigReader& json, ModelConfig& config) {
  const HeadCounts heads = ReadHeads(json, config.hidden_size, 2);
  CheckGrouping(json, heads);
  CheckActivation(json, "silu");
  config.norm_eps = static_cast<float>(json.Number("rms_norm_eps", 1e-5, 0, 1));
  config.rope.style = RopeStyle::kInterleaved;
  config.names.attention_out = "out_proj";

  DiffSpec& attention = config.attention;
  attention.num_q1_heads = heads.num_q;
  attention.num_q2_heads = heads.num_q;
  attention.num_kv_groups = heads.num_kv;
  attention.k_maps = 2;
  attention.head_dim = heads.head_dim;
  attention.v_dim = 2 * heads.head_dim;
  attention.lambda_kind = LambdaKind::kPerLayer;
  // Without a weight: the code before October 2024. Without the sub-norm: the ablation; (1 -
  // lambda_init) stays.
  const bool affine = json.Bool("subln_affine", true);
  attention.sub_norm = !json.Bool("use_subln", true) ? SubNorm::kNone
                       : affine                      ? SubNorm::kAffine
                                                     : SubNorm::kPlain;
  attention.sub_norm_eps = kUnilmSubNormEps;

  for (int map : {0, 1}) {
    const std::vector<int32_t> q = Strided(map, 2, heads.num_q), k = Strided(map, 2, heads.num_kv);
    config.head_order.q.insert(config.head_order.q.end(), q.begin(), q.end());
    config.head_order.k.insert(config.head_order.k.end(), k.begin(), k.end());
  }
  config.head_order.v = Strided(0, 1, 2 * heads.num_kv);
  config.lambda_init = ReadLambdaInit(json, config.num_layers);
}

}  // namespace

const Family kDiffTransformerFamily = {"diff_transformer", "diff_transformer",
                                       "DiffTransformerForCausalLM", std::nullopt,
                                       ConfigureDiffTransformer};

}  // namespace diffserve
