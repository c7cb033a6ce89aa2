// SPDX-License-Identifier: Apache-2.0
// Llama (transformers' "llama"): plain attention, the case without a second map.
#include "models/families/family.h"
#include "models/families/heads.h"

namespace diffserve {
namespace {

void ConfigureLlama(ConfigReader& json, ModelConfig& config) {
  const HeadCounts heads = ReadHeads(json, config.hidden_size, 1);
  CheckGrouping(json, heads);
  CheckActivation(json, "silu");
  config.norm_eps = static_cast<float>(json.Number("rms_norm_eps", 1e-6, 0, 1));
  config.qkv_bias = config.attention_out_bias = json.Bool("attention_bias", false);
  config.mlp_bias = json.Bool("mlp_bias", false);

  config.attention.num_q1_heads = heads.num_q;
  config.attention.num_kv_groups = heads.num_kv;
  config.attention.head_dim = heads.head_dim;
  config.attention.v_dim = heads.head_dim;
  config.head_order = {Strided(0, 1, heads.num_q), Strided(0, 1, heads.num_kv),
                       Strided(0, 1, heads.num_kv)};
}

}  // namespace

const Family kLlamaFamily = {"llama", "llama", "LlamaForCausalLM", 2048, ConfigureLlama};

}  // namespace diffserve
