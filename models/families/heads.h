// SPDX-License-Identifier: Apache-2.0
// Shared by the families: reading head counts and bringing heads into canonical order
// (diff_spec.h).
#pragma once

#include "models/config_reader.h"
#include "models/model_config.h"

namespace diffserve {

// Head counts as config.json gives them, and the width of a query or key head.
struct HeadCounts {
  int num_q = 0;
  int num_kv = 0;
  int head_dim = 0;
};

// num_attention_heads, num_key_value_heads (default: the same) and head_dim (default: hidden_size /
// num_attention_heads / `pairing`). `pairing` is 2 if config.json counts pairs of query heads
// (unilm), else 1.
HeadCounts ReadHeads(ConfigReader& json, int hidden_size, int pairing);
// Records a problem unless num_kv divides num_q.
void CheckGrouping(ConfigReader& json, const HeadCounts& heads);
// Records a problem unless num_kv is even, as required if key and value heads form pairs.
void CheckPairs(ConfigReader& json, const HeadCounts& heads);
// Records a problem unless hidden_act (default: `expected`) is `expected`.
void CheckActivation(ConfigReader& json, const char* expected);

// first, first + step, ...: `count` of them.
std::vector<int32_t> Strided(int first, int step, int count);

// 0.8 - 0.6 exp(-0.3 layer) (arXiv 2410.05258, section 2.1, which counts layers from 1) for layer =
// first, first + 1, ...
std::vector<float> ExponentialLambdaInit(int first, int num_layers);

}  // namespace diffserve
