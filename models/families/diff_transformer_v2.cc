// SPDX-License-Identifier: Apache-2.0
// The authors' second version (microsoft/unilm, Diff-Transformer-V2). Both maps of a group read one
// K and one V of width head_dim. Output head i is query head 2i minus sigmoid(lambda_proj(x))_i
// times query head 2i + 1, and there is no sub-norm. config.json counts output heads.
#include "models/families/family.h"
#include "models/families/heads.h"

namespace diffserve {
namespace {

void ConfigureDiffTransformerV2(ConfigReader& json, ModelConfig& config) {
  if (!json.Has("head_dim")) json.Fail("head_dim", "is missing");
  const HeadCounts heads = ReadHeads(json, config.hidden_size, 2);
  CheckGrouping(json, heads);
  CheckActivation(json, "silu");
  config.norm_eps = static_cast<float>(json.Number("rms_norm_eps", 1e-5, 0, 1));
  config.rope.style = RopeStyle::kInterleaved;

  DiffSpec& attention = config.attention;
  attention.num_q1_heads = heads.num_q;
  attention.num_q2_heads = heads.num_q;
  attention.num_kv_groups = heads.num_kv;
  attention.k_maps = 1;
  attention.head_dim = heads.head_dim;
  attention.v_dim = heads.head_dim;
  attention.lambda_kind = LambdaKind::kPerTokenHead;

  for (int map : {0, 1}) {
    const std::vector<int32_t> q = Strided(map, 2, heads.num_q);
    config.head_order.q.insert(config.head_order.q.end(), q.begin(), q.end());
  }
  config.head_order.k = config.head_order.v = Strided(0, 1, heads.num_kv);
}

}  // namespace

const Family kDiffTransformerV2Family = {"diff_transformer_v2", "diff_transformer_v2",
                                         "DiffTransformerV2ForCausalLM", std::nullopt,
                                         ConfigureDiffTransformerV2};

}  // namespace diffserve
