// SPDX-License-Identifier: Apache-2.0
// DiffLlama (transformers' "diffllama"): Llama with differential attention. Heads are paired by
// halves. Output head i is query head i minus lambda times query head i + Hq/2. Key heads j and j +
// Hk/2 are K1 and K2 of group j, and value heads j and j + Hk/2 side by side are its V. So
// canonical q and k rows are as stored, and v rows are interleaved.
#include "models/families/family.h"
#include "models/families/heads.h"

namespace diffserve {
namespace {

void ConfigureDiffLlama(ConfigReader& json, ModelConfig& config) {
  const HeadCounts heads = ReadHeads(json, config.hidden_size, 1);
  CheckGrouping(json, heads);
  CheckPairs(json, heads);
  CheckActivation(json, "silu");
  config.norm_eps = static_cast<float>(json.Number("rms_norm_eps", 1e-5, 0, 1));
  config.qkv_bias = config.attention_out_bias = json.Bool("attention_bias", false);

  const int groups = heads.num_kv / 2;
  DiffSpec& attention = config.attention;
  attention.num_q1_heads = heads.num_q / 2;
  attention.num_q2_heads = heads.num_q / 2;
  attention.num_kv_groups = groups;
  attention.k_maps = 2;
  attention.head_dim = heads.head_dim;
  attention.v_dim = 2 * heads.head_dim;
  attention.lambda_kind = LambdaKind::kPerLayer;
  attention.sub_norm = SubNorm::kPlain;
  attention.sub_norm_eps = config.norm_eps;

  config.head_order.q = Strided(0, 1, heads.num_q);
  config.head_order.k = Strided(0, 1, heads.num_kv);
  for (int group = 0; group < groups; ++group) {
    config.head_order.v.push_back(group);
    config.head_order.v.push_back(group + groups);
  }
  config.lambda_init = ExponentialLambdaInit(0, config.num_layers);
}

}  // namespace

const Family kDiffLlamaFamily = {"diffllama", "diffllama", "DiffLlamaForCausalLM", 2048,
                                 ConfigureDiffLlama};

}  // namespace diffserve
