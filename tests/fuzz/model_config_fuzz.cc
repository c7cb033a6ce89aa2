// SPDX-License-Identifier: Apache-2.0
// config.json and, behind a NUL byte, generation_config.json: refused by one line, or a
// configuration that everything which is sized by it can rely on.
#include <cmath>
#include <cstdint>

#include "models/load_config.h"
#include "models/model_config.h"
#include "tests/fuzz/model_file.h"

namespace diffserve {
namespace {

// Every physical head is one canonical head.
void CheckOrder(std::vector<int32_t> order, int num_heads) {
  DS_CHECK(std::ssize(order) == num_heads, "each head has its place");
  std::ranges::sort(order);
  for (int i = 0; i < num_heads; ++i) DS_CHECK(order[i] == i, "each head has one place");
}

void CheckAttention(const ModelConfig& config) {
  const DiffSpec& spec = config.attention;
  DS_CHECK(spec.num_q1_heads > 0 && spec.num_q2_heads >= 0 && spec.num_kv_groups > 0,
           "there are heads");
  DS_CHECK(spec.num_q1_heads % spec.num_kv_groups == 0, "groups are of one size");
  DS_CHECK(!spec.has_second_map() || (spec.num_q1_heads % spec.num_q2_heads == 0 &&
                                      spec.num_q2_heads % spec.num_kv_groups == 0),
           "each signal head has a noise head of its group");
  DS_CHECK(spec.has_second_map() == (spec.lambda_kind != LambdaKind::kNone),
           "a second map has a lambda");
  DS_CHECK(spec.head_dim > 0 && spec.head_dim % 2 == 0 && spec.v_dim % spec.head_dim == 0,
           "heads have a width that rope can turn");
  CheckOrder(config.head_order.q, spec.num_q1_heads + spec.num_q2_heads);
  CheckOrder(config.head_order.k, spec.num_kv_groups * spec.k_maps);
  CheckOrder(config.head_order.v, spec.v_width() / spec.head_dim);
  for (const double frequency : InverseFrequencies(config.rope, spec.head_dim))
    DS_CHECK(std::isfinite(frequency) && frequency >= 0, "positions turn by finite angles");
}

void CheckNumbers(const ModelConfig& config) {
  DS_CHECK(config.vocab_size > 0 && config.hidden_size > 0 && config.intermediate_size > 0 &&
               config.num_layers > 0 && config.max_positions > 0,
           "nothing is empty");
  DS_CHECK(std::isfinite(config.norm_eps) && config.norm_eps >= 0, "the norm is one");
  const bool per_layer = config.attention.lambda_kind == LambdaKind::kPerLayer;
  DS_CHECK(std::ssize(config.lambda_init) == (per_layer ? config.num_layers : 0),
           "each layer has its lambda_init");
  for (const float lambda : config.lambda_init) DS_CHECK(std::isfinite(lambda), "lambda_init");
  for (const int32_t id : config.eos_token_ids)
    DS_CHECK(id >= 0 && id < config.vocab_size, "eos_token_id is a token");
  DS_CHECK(
      config.bos_token_id.value_or(0) >= 0 && config.bos_token_id.value_or(0) < config.vocab_size,
      "bos_token_id is a token");
  DS_CHECK(config.default_temperature.value_or(0) >= 0, "a default can be used");
  DS_CHECK(config.default_top_p.value_or(1) > 0 && config.default_top_p.value_or(1) <= 1,
           "a default can be used");
  DS_CHECK(config.default_top_k.value_or(0) >= 0, "a default can be used");
  DS_CHECK(config.default_repetition_penalty.value_or(1) > 0, "a default can be used");
}

}  // namespace
}  // namespace diffserve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const diffserve::testing::FuzzedModelDirectory directory;
  const auto [config, generation] = diffserve::testing::TwoFiles(
      {reinterpret_cast<const char*>(data), size});
  directory.Put("config.json", config);
  directory.Put("generation_config.json", generation);
  const auto loaded = diffserve::LoadModelConfig(directory.path());
  if (!loaded.ok()) {
    directory.CheckError(loaded.status());
  } else {
    diffserve::CheckAttention(*loaded);
    diffserve::CheckNumbers(*loaded);
  }
  return 0;
}
