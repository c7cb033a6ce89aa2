// SPDX-License-Identifier: Apache-2.0
// The family phi4flash from its config.json: the kind of each layer, and the errors.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/models/config_changes.h"

namespace diffserve {
namespace {

const Changes kEightLayers = {{"num_hidden_layers", "8"}, {"sliding_window", "6"}};

Result<ModelConfig> Load(const Changes& more) {
  Changes changes = kEightLayers;
  for (const auto& [key, value] : more) changes[key] = value;
  return LoadWith(changes, "phi4flash");
}

template <typename T>
std::vector<T> OfLayers(const ModelConfig& config, T LayerConfig::* member) {
  std::vector<T> values;
  for (const LayerConfig& layer : config.layers) values.push_back(layer.*member);
  return values;
}

TEST(Phi4FlashFamilyTest, TwoHalvesOfTheLayersHaveDifferentKinds) {
  const Result<ModelConfig> config = Load({});
  ASSERT_TRUE(config.ok()) << config.status().message();
  constexpr MixerKind kScan = MixerKind::kMamba, kAttend = MixerKind::kAttention,
                      kUnit = MixerKind::kGatedMemory;
  EXPECT_EQ(OfLayers(*config, &LayerConfig::mixer),
            (std::vector{kScan, kAttend, kScan, kAttend, kScan, kAttend, kUnit, kAttend}));
  EXPECT_EQ(OfLayers(*config, &LayerConfig::window), (std::vector{0, 6, 0, 6, 0, 0, 0, 0}));
  EXPECT_EQ(OfLayers(*config, &LayerConfig::shares_kv),
            (std::vector{false, false, false, false, false, false, false, true}));
  EXPECT_EQ(OfLayers(*config, &LayerConfig::makes_memory),
            (std::vector{false, false, false, false, true, false, false, false}));
  std::vector<int> kv, states;
  for (const LayerConfig& layer : config->layers) {
    if (layer.mixer == kAttend) kv.push_back(layer.kv);
    if (layer.has_state()) states.push_back(layer.state);
  }
  EXPECT_EQ(kv, (std::vector{0, 1, 2, 2}));
  EXPECT_EQ(states, (std::vector{0, 1, 2}));
  EXPECT_EQ(config->num_kv_layers(), 3);
  EXPECT_EQ(config->num_state_layers(), 3);
  EXPECT_EQ(config->last_keeping_layer(), 5);
}

TEST(Phi4FlashFamilyTest, ListOfWindowsEqualsItsNumber) {
  const Result<ModelConfig> config = Load(
      {{"sliding_window", "[null, 6, null, 6, null, null, null, null]"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(OfLayers(*config, &LayerConfig::window), (std::vector{0, 6, 0, 6, 0, 0, 0, 0}));
}

TEST(Phi4FlashFamilyTest, HeadsArePairedSideBySideInOneTensor) {
  const Result<ModelConfig> config = Load(
      {{"num_attention_heads", "8"}, {"num_key_value_heads", "4"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  const DiffSpec& spec = config->attention;
  EXPECT_EQ(spec.num_q1_heads, 4);
  EXPECT_EQ(spec.num_q2_heads, 4);
  EXPECT_EQ(spec.num_kv_groups, 2);
  EXPECT_EQ(spec.k_maps, 2);
  EXPECT_EQ(spec.head_dim, 4);
  EXPECT_EQ(spec.v_dim, 8);
  EXPECT_EQ(spec.sub_norm, SubNorm::kAffine);
  EXPECT_EQ(spec.sub_norm_eps, 1e-5f);
  EXPECT_EQ(config->head_order.q, (std::vector<int32_t>{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(config->head_order.k, (std::vector<int32_t>{0, 2, 1, 3}));
  EXPECT_EQ(config->head_order.v, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(config->head_order.stacked,
            (std::vector<int32_t>{0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 9, 11, 12, 13, 14, 15}));
}

TEST(Phi4FlashFamilyTest, LambdaInitCountsAllLayers) {
  const Result<ModelConfig> config = Load({});
  ASSERT_TRUE(config.ok()) << config.status().message();
  const std::vector<float> expected = {0.2f,        0.35550907f, 0.47071302f, 0.55605804f,
                                       0.61928347f, 0.66612190f, 0.70082067f, 0.72652615f};
  ASSERT_EQ(config->lambda_init.size(), expected.size());
  for (size_t l = 0; l < expected.size(); ++l)
    EXPECT_FLOAT_EQ(config->lambda_init[l], expected[l]) << l;
}

TEST(Phi4FlashFamilyTest, AbsentKeysHaveTheAuthorsDefaults) {
  const Result<ModelConfig> config = Load(
      {{"tie_word_embeddings", ""}, {"max_position_embeddings", ""}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->max_positions, 4096);
  EXPECT_EQ(config->norm_eps, 1e-5f);
  EXPECT_EQ(config->mamba.inner, 64);
  EXPECT_EQ(config->mamba.state_dim, 16);
  EXPECT_EQ(config->mamba.conv_width, 4);
  EXPECT_EQ(config->mamba.dt_rank, 2);
  EXPECT_TRUE(Load({{"mamba_dt_rank", "2"}}).ok());
  EXPECT_TRUE(Load({{"mamba_dt_rank", "\"auto\""}}).ok());
}

TEST(Phi4FlashFamilyTest, UnservableModelIsRefusedInOneLine) {
  const auto windows = [](const std::string& shown) {
    return "sliding_window is " + shown +
           "; allowed: a number, or a list of num_hidden_layers with the same number for each odd "
           "layer of the first half and null for the others";
  };
  const auto mamba = [](const std::string& shown) {
    return "mamba_dt_rank is " + shown + "; allowed: \"auto\" or hidden_size / 16, rounded up";
  };
  const std::string no_layer_types = "; allowed: none: num_hidden_layers says what each layer is";
  const Refusal refusals[] = {
      {{{"sliding_window", "[null,6,null,6,null,null,null]"}},
       windows("[null,6,null,6,null,null,null]")},
      {{{"sliding_window", "[null,6,null,7,null,null,null,null]"}},
       windows("[null,6,null,7,null,null,null,null]")},
      {{{"sliding_window", "[null,6,null,null,null,null,null,null]"}},
       windows("[null,6,null,null,null,null,null,null]")},
      {{{"sliding_window", "[null,null,null,null,null,null,null,null]"}},
       windows("[null,null,null,null,null,null,null,null]")},
      {{{"sliding_window", "[null,6,null,6,null,6,null,null]"}},
       windows("[null,6,null,6,null,6,null,null]")},
      {{{"sliding_window", "[6,6,null,6,null,null,null,null]"}},
       windows("[6,6,null,6,null,null,null,null]")},
      {{{"sliding_window", ""}}, "sliding_window is missing"},
      {{{"layer_types", "[\"mamba\",\"full_attention\"]"}},
       "layer_types is [\"mamba\",\"full_attention\"]" + no_layer_types},
      {{{"layer_types", "[\"full_attention\"]"}},
       "layer_types is [\"full_attention\"]" + no_layer_types},
      {{{"mamba_dt_rank", "3"}}, mamba("3")},
      {{{"mamba_dt_rank", "\"2\""}}, mamba("\"2\"")},
      {{{"mamba_conv_bias", "false"}}, "mamba_conv_bias is false; allowed: true"},
      {{{"mamba_proj_bias", "true"}}, "mamba_proj_bias is true; allowed: false"},
      {{{"mlp_bias", "true"}}, "mlp_bias is true; allowed: false"},
      {{{"lm_head_bias", "true"}}, "lm_head_bias is true; allowed: false"},
      {{{"mb_per_layer", "1"}}, "mb_per_layer is 1; allowed: 2"},
      {{{"num_hidden_layers", "6"}}, "num_hidden_layers is 6; allowed: a multiple of 4"},
      {{{"num_attention_heads", "3"}, {"num_key_value_heads", "3"}, {"hidden_size", "36"}},
       "num_key_value_heads is 3; allowed: an even number: key and value heads form pairs"},
      {{{"num_key_value_heads", "1"}},
       "num_key_value_heads is 1; allowed: an even number: key and value heads form pairs"},
      {{{"head_dim", "16"}},
       "num_attention_heads is 4; allowed: heads that are as wide as hidden_size together"},
      {{{"hidden_act", "\"gelu\""}}, "hidden_act is \"gelu\"; allowed: silu"},
  };
  for (const Refusal& refusal : refusals) {
    Changes changes = kEightLayers;
    for (const auto& [key, value] : refusal.changes) changes[key] = value;
    ExpectRefused({changes, refusal.line}, "phi4flash");
  }
}

}  // namespace
}  // namespace diffserve
