// SPDX-License-Identifier: Apache-2.0
// The DiffSpec of each family's form of attention, for tests.
#pragma once

#include <vector>

#include "kernels/attention/diff_spec.h"
#include "kernels/attention/logit_quant.h"

namespace diffserve::testing {

inline DiffSpec DiffLlamaSpec(int heads, int groups, int head_dim) {
  return {.num_q1_heads = heads,
          .num_q2_heads = heads,
          .num_kv_groups = groups,
          .k_maps = 2,
          .head_dim = head_dim,
          .v_dim = 2 * head_dim,
          .lambda_kind = LambdaKind::kPerLayer,
          .sub_norm = SubNorm::kPlain};
}
inline DiffSpec PlainSpec(int heads, int groups, int head_dim) {
  return {.num_q1_heads = heads, .num_kv_groups = groups, .head_dim = head_dim, .v_dim = head_dim};
}
inline DiffSpec V2Spec(int heads, int groups, int head_dim) {
  return {.num_q1_heads = heads,
          .num_q2_heads = heads,
          .num_kv_groups = groups,
          .k_maps = 1,
          .head_dim = head_dim,
          .v_dim = head_dim,
          .lambda_kind = LambdaKind::kPerTokenHead};
}
// Grouped differential attention: four signal heads share a noise head.
inline DiffSpec GroupedSpec(int groups, int head_dim) {
  DiffSpec spec = DiffLlamaSpec(4 * groups, groups, head_dim);
  spec.num_q2_heads = groups;
  spec.sub_norm = SubNorm::kAffine;
  return spec;
}

// Every form of quantised logits.
inline std::vector<LogitQuant> LogitQuants() {
  std::vector<LogitQuant> quants;
  for (LogitScale scale : kLogitScales) {
    for (int bits : {8, 6, 4}) quants.push_back({bits, scale});
  }
  return quants;
}

}  // namespace diffserve::testing
