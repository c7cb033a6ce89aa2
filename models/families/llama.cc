// Llama (transformers' "llama"): plain attention, the case without a second map.
#include <numeric>

#include "models/families/family.h"

namespace diffserve {
namespace {

std::vector<int32_t> AsStored(int count) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void Configure(ConfigReader& json, const PhysicalHeads& heads, ModelConfig& config) {
  config.rms_norm_eps = static_cast<float>(json.Number("rms_norm_eps", 1e-6, 0, 1));
  config.mlp_bias = json.Bool("mlp_bias", false);

  config.attention.num_q1_heads = heads.num_q;
  config.attention.num_kv_groups = heads.num_kv;
  config.attention.head_dim = heads.head_dim;
  config.attention.v_dim = heads.head_dim;
  config.head_order = {AsStored(heads.num_q), AsStored(heads.num_kv), AsStored(heads.num_kv)};
}

}  // namespace

const Family kLlamaFamily = {"llama", "llama", "LlamaForCausalLM", Configure};

}  // namespace diffserve
