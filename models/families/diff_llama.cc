// DiffLlama (transformers' "diffllama"): Llama with differential attention. Heads are paired by halves: output head i is query
// head i minus lambda times query head i + Hq/2, key heads j and j + Hk/2 are K1 and K2 of group j, and value heads j and
// j + Hk/2 side by side are its V. Canonical q and k rows are therefore as stored; those of v are interleaved.
#include <cmath>
#include <numeric>

#include "models/families/family.h"

namespace diffserve {
namespace {

// lambda_init of layer l, counted from 0 (arXiv 2410.05258, section 2.1, counts from 1).
float LambdaInit(int layer) { return static_cast<float>(0.8 - 0.6 * std::exp(-0.3 * layer)); }

void Configure(ConfigReader& json, const PhysicalHeads& heads, ModelConfig& config) {
  config.rms_norm_eps = static_cast<float>(json.Number("rms_norm_eps", 1e-5, 0, 1));
  if (heads.num_kv % 2 != 0) {
    json.Fail("num_key_value_heads",
              "is " + std::to_string(heads.num_kv) + ", expected an even number: key and value heads form pairs");
    return;
  }
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
  attention.sub_norm_eps = config.rms_norm_eps;

  config.head_order.q.resize(static_cast<size_t>(heads.num_q));
  std::iota(config.head_order.q.begin(), config.head_order.q.end(), 0);
  config.head_order.k.resize(static_cast<size_t>(heads.num_kv));
  std::iota(config.head_order.k.begin(), config.head_order.k.end(), 0);
  for (int group = 0; group < groups; ++group) {
    config.head_order.v.push_back(group);
    config.head_order.v.push_back(group + groups);
  }
  for (int layer = 0; layer < config.num_layers; ++layer) config.lambda_init.push_back(LambdaInit(layer));
}

}  // namespace

const Family kDiffLlamaFamily = {"diffllama", "diffllama", "DiffLlamaForCausalLM", Configure};

}  // namespace diffserve
