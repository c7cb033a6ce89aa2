// SPDX-License-Identifier: Apache-2.0
#include "models/families/heads.h"

#include <cmath>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 1024;
constexpr int kMaxWidth = 1 << 20;  // of all heads together

}  // namespace

HeadCounts ReadHeads(ConfigReader& json, int hidden_size, int pairing) {
  HeadCounts heads;
  heads.num_q = json.Int("num_attention_heads", std::nullopt, 1, kMaxHeads);
  heads.num_kv = json.Int("num_key_value_heads", heads.num_q, 1, kMaxHeads);
  const int physical = heads.num_q * pairing;
  if (!json.Has("head_dim") && hidden_size % physical != 0) {
    json.Refuse("num_attention_heads",
                "a divisor of hidden_size" + (pairing > 1 ? " / " + std::to_string(pairing) : "") +
                    " = " + std::to_string(hidden_size / pairing) + ", or head_dim to be given");
  }
  heads.head_dim = json.Int("head_dim", hidden_size / physical, 0, kMaxHeadDim);
  if (heads.head_dim < 2 || heads.head_dim % 2 != 0) {
    json.Fail("head_dim", RefusalText("is " + std::to_string(heads.head_dim),
                                      "an even number from 2 to " + std::to_string(kMaxHeadDim)));
  }
  if (physical * heads.head_dim > kMaxWidth) {
    json.Refuse("num_attention_heads",
                "heads of at most " + std::to_string(kMaxWidth) + " values in all");
  }
  return heads;
}

void CheckGrouping(ConfigReader& json, const HeadCounts& heads) {
  if (heads.num_q % heads.num_kv != 0) {
    json.Refuse("num_key_value_heads",
                "a divisor of num_attention_heads = " + std::to_string(heads.num_q));
  }
}

void CheckPairs(ConfigReader& json, const HeadCounts& heads) {
  if (heads.num_kv % 2 != 0) {
    json.Fail("num_key_value_heads", RefusalText("is " + std::to_string(heads.num_kv),
                                                 "an even number: key and value heads form pairs"));
  }
}

void CheckActivation(ConfigReader& json, const char* expected) {
  if (json.String("hidden_act", expected) != expected) json.Refuse("hidden_act", expected);
}

std::vector<int32_t> Strided(int first, int step, int count) {
  std::vector<int32_t> heads;
  for (int i = 0; i < count; ++i) heads.push_back(first + i * step);
  return heads;
}

std::vector<float> ExponentialLambdaInit(int first, int num_layers) {
  std::vector<float> init;
  for (int layer = first; layer < first + num_layers; ++layer) {
    init.push_back(static_cast<float>(0.8 - 0.6 * std::exp(-0.3 * layer)));
  }
  return init;
}

}  // namespace diffserve
