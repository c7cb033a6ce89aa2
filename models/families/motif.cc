// SPDX-License-Identifier: Apache-2.0
// Motif-2.6B and Motif-2-12.7B (Motif Technologies): grouped differential attention (arXiv
// 2510.06949). Query heads come in groups: `ratio` signal heads and then the noise head that is
// subtracted from each of them. The 2.6B model, whose config has no num_noise_heads, has ratio 1.
// Key heads 2j and 2j + 1 are K1 and K2 of group j, value heads 2j and 2j + 1 its V. The MLP's
// activation is PolyNorm. Motif-3 also uses the name MotifForCausalLM; it is recognised by its keys
// and refused.
#include "models/families/family.h"
#include "models/families/heads.h"

namespace diffserve {
namespace {

// Signal heads per noise head; 1, with a problem recorded, if the counts do not fit.
int ReadRatio(ConfigReader& json, const HeadCounts& heads) {
  if (!json.Has("num_noise_heads")) {
    if (heads.num_q % 2 != 0)
      json.Refuse("num_attention_heads", "an even number: query heads form pairs");
    return 1;
  }
  if (!json.Has("head_dim")) json.Fail("head_dim", "is missing, and num_noise_heads needs it");
  if (json.Int("k_ratio", 1, 0, 1 << 20) != 1) json.Refuse("k_ratio", "1");
  const int noise = json.Int("num_noise_heads", std::nullopt, 1, heads.num_q);
  if (heads.num_q % noise != 0 || heads.num_q == noise) {
    json.Refuse("num_noise_heads",
                "a proper divisor of num_attention_heads = " + std::to_string(heads.num_q));
    return 1;
  }
  return heads.num_q / noise - 1;
}

void ReadBiases(ConfigReader& json, ModelConfig& config) {
  const bool use_bias = json.Bool("use_bias", false);
  config.attention_out_bias = json.Bool("attention_bias", false) || use_bias;
  config.qkv_bias = json.Bool("qkv_bias", config.attention_out_bias);
  config.mlp_bias = use_bias;
}

void ConfigureMotif(ConfigReader& json, ModelConfig& config) {
  const HeadCounts heads = ReadHeads(json, config.hidden_size, 1);
  CheckPairs(json, heads);
  CheckActivation(json, "poly_norm");
  config.mlp = MlpKind::kPolyNorm;
  config.norm_eps = static_cast<float>(json.Number("rms_norm_eps", 1e-6, 0, 1));
  ReadBiases(json, config);

  const int ratio = ReadRatio(json, heads);
  const int noise = heads.num_q / (ratio + 1);
  const int groups = heads.num_kv / 2;
  if (groups == 0 || noise % groups != 0) {
    json.Refuse("num_key_value_heads",
                "twice a divisor of the " + std::to_string(noise) + " noise heads");
    return;
  }
  DiffSpec& attention = config.attention;
  attention.num_q1_heads = noise * ratio;
  attention.num_q2_heads = noise;
  attention.num_kv_groups = groups;
  attention.k_maps = 2;
  attention.head_dim = heads.head_dim;
  attention.v_dim = 2 * heads.head_dim;
  attention.lambda_kind = LambdaKind::kPerLayer;
  attention.sub_norm = SubNorm::kAffine;
  attention.sub_norm_eps = static_cast<float>(json.Number("attn_rms_norm_eps", 1e-5, 0, 1));

  HeadOrder& order = config.head_order;
  for (int head = 0; head < heads.num_q; ++head) {
    if (head % (ratio + 1) != ratio) order.q.push_back(head);
  }
  const std::vector<int32_t> noise_heads = Strided(ratio, ratio + 1, noise);
  order.q.insert(order.q.end(), noise_heads.begin(), noise_heads.end());
  order.k = Strided(0, 2, groups);
  const std::vector<int32_t> noise_keys = Strided(1, 2, groups);
  order.k.insert(order.k.end(), noise_keys.begin(), noise_keys.end());
  order.v = Strided(0, 1, heads.num_kv);
  // The authors count layers from -1.
  config.lambda_init = ExponentialLambdaInit(-1, config.num_layers);
}

}  // namespace

const Family kMotifFamily = {"motif", "motif", "MotifForCausalLM", std::nullopt, ConfigureMotif};

}  // namespace diffserve
