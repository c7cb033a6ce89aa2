// SPDX-License-Identifier: Apache-2.0
// RopeConfig: the rotary frequencies of a model, as transformers' Llama computes them. Reads either
// spelling of the config (rope_theta + rope_scaling, or rope_parameters).
#pragma once

#include <vector>

#include "kernels/ops/rope_append.h"
#include "models/config_reader.h"

namespace diffserve {

struct RopeConfig {
  // kDynamic changes the frequencies only beyond max_position_embeddings, and no position beyond it
  // is served. Within it, it equals kDefault.
  enum class Type { kDefault, kLinear, kLlama3, kYarn, kDynamic };
  Type type = Type::kDefault;
  RopeStyle style = RopeStyle::kHalfSplit;
  double theta = 10000.0;
  double factor = 1.0;                // all but kDefault
  int original_max_positions = 8192;  // llama3, yarn: before the model's context was extended
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  double beta_fast = 32.0;  // yarn: a frequency with more turns over the original context is kept
  double beta_slow = 1.0;   // yarn: one with fewer turns is divided by the factor
  bool truncate = true;     // yarn: the two bounds are rounded outwards to whole frequencies
  double attention_factor = 1.0;  // yarn: scales cos and sin
};

// `json` is the model's config.json. Problems are recorded in it.
RopeConfig ReadRope(ConfigReader& json, int max_positions);

const char* NameOf(RopeConfig::Type type);  // as config.json spells it

// inv_freq[i] for i < head_dim / 2. The values are float32 and come from the same float32 steps as
// transformers', because checkpoints were trained with those. A rounding of 1e-7 in a frequency is
// a milliradian at position 10,000.
std::vector<double> InverseFrequencies(const RopeConfig& rope, int head_dim);

}  // namespace diffserve
