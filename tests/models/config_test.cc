// SPDX-License-Identifier: Apache-2.0
// config.json and generation_config.json: both spellings, every error and its message.
#include <gtest/gtest.h>

#include <cmath>

#include "models/families/family.h"
#include "models/load_config.h"
#include "models/model_config.h"
#include "tests/testing/models/config_changes.h"

namespace diffserve {
namespace {

const std::vector<Refusal> kRefusals = {
    {{{"model_type", ""}}, "model_type is missing"},
    {{{"model_type", "\"gpt2\""}},
     "model_type is \"gpt2\"; allowed: diffllama, diff_transformer, "
     "diff_transformer_v2, llama, motif, phi4flash"},
    {{{"model_type", "\"custom\""}, {"auto_map", "{\"AutoConfig\": \"x.Y\"}"}},
     "model_type is \"custom\"; allowed: diffllama, diff_transformer, "
     "diff_transformer_v2, llama, motif, phi4flash (code inside a checkpoint, auto_map, is never "
     "run)"},
    {{{"model_type", "7"}}, "model_type is 7; allowed: a string"},
    {{{"architectures", "[\"DiffLlamaForTokenClassification\"]"}},
     "architectures is [\"DiffLlamaForTokenClassification\"]; allowed: DiffLlamaForCausalLM"},
    {{{"architectures", "\"DiffLlamaForCausalLM\""}},
     "architectures is \"DiffLlamaForCausalLM\"; allowed: a list of strings"},
    {{{"quantization_config", "{\"bits\": 4}"}},
     "quantization_config is set: quantised weights cannot be served"},
    {{{"num_local_experts", "8"}}, "num_local_experts is set: mixture of experts cannot be served"},
    {{{"num_experts", "8"}}, "num_experts is set: mixture of experts cannot be served"},
    {{{"n_routed_experts", "8"}}, "n_routed_experts is set: mixture of experts cannot be served"},
    {{{"moe_intermediate_size", "8"}},
     "moe_intermediate_size is set: mixture of experts cannot be served"},
    {{{"kv_lora_rank", "512"}},
     "kv_lora_rank is set: latent attention (MLA, GDLA) cannot be served"},
    {{{"model_type", "\"diff_llama\""}, {"auto_map", "{\"AutoConfig\": \"x.Y\"}"}},
     "model_type is \"diff_llama\": a model of remote code, whose layout differs from that of "
     "diffllama, and cannot be served"},
    {{{"sliding_window", "128"}},
     "sliding_window is switched on: windowed attention cannot be served"},
    {{{"layer_types", "[\"full_attention\", \"sliding_attention\"]"}},
     "layer_types is [\"full_attention\",\"sliding_attention\"]; allowed: "
     "full_attention in every layer"},
    {{{"hidden_act", "\"gelu\""}}, "hidden_act is \"gelu\"; allowed: silu"},
    {{{"partial_rotary_factor", "0.5"}}, "partial_rotary_factor is 0.5; allowed: 1"},
    {{{"transformers_weights", "\"other.safetensors\""}},
     "transformers_weights is \"other.safetensors\"; allowed: model.safetensors"},
    {{{"torch_dtype", "\"int8\""}},
     "torch_dtype is \"int8\"; allowed: float32, bfloat16 or float16"},
    {{{"dtype", "\"float64\""}}, "dtype is \"float64\"; allowed: float32, bfloat16 or float16"},
    {{{"vocab_size", ""}}, "vocab_size is missing"},
    {{{"vocab_size", "1000000000000"}},
     "vocab_size is 1000000000000; allowed: an integer from 1 to 4194304"},
    {{{"vocab_size", "18446744073709551615"}},
     "vocab_size is 18446744073709551615; allowed: an integer from 1 to 4194304"},
    {{{"vocab_size", "1e30"}}, "vocab_size is 1e+30; allowed: an integer from 1 to 4194304"},
    {{{"hidden_size", "-4"}}, "hidden_size is -4; allowed: an integer from 1 to 1048576"},
    {{{"hidden_size", "32.5"}}, "hidden_size is 32.5; allowed: an integer from 1 to 1048576"},
    {{{"hidden_size", "\"32\""}}, "hidden_size is \"32\"; allowed: an integer from 1 to 1048576"},
    {{{"hidden_size", "null"}}, "hidden_size is missing"},
    {{{"hidden_size", "{\"a\": 1}"}},
     "hidden_size is an object; allowed: an integer from 1 to 1048576"},
    {{{"intermediate_size", "0"}}, "intermediate_size is 0; allowed: an integer from 1 to 1048576"},
    {{{"num_hidden_layers", "100000"}},
     "num_hidden_layers is 100000; allowed: an integer from 1 to 1024"},
    {{{"num_attention_heads", "0"}},
     "num_attention_heads is 0; allowed: an integer from 1 to 4096"},
    {{{"num_attention_heads", "6"}},
     "num_attention_heads is 6; allowed: a divisor of hidden_size = 32, or head_dim "
     "to be given"},
    {{{"num_attention_heads", "4096"}, {"head_dim", "1024"}},
     "num_attention_heads is 4096; allowed: heads of at most 1048576 values in all"},
    {{{"num_key_value_heads", "3"}},
     "num_key_value_heads is 3; allowed: a divisor of num_attention_heads = 4"},
    {{{"num_key_value_heads", "1"}},
     "num_key_value_heads is 1; allowed: an even number: key and value heads form "
     "pairs"},
    {{{"head_dim", "7"}}, "head_dim is 7; allowed: an even number from 2 to 1024"},
    {{{"head_dim", "0"}}, "head_dim is 0; allowed: an even number from 2 to 1024"},
    {{{"head_dim", "2048"}}, "head_dim is 2048; allowed: an integer from 0 to 1024"},
    {{{"max_position_embeddings", "0"}},
     "max_position_embeddings is 0; allowed: an integer from 1 to 16777216"},
    {{{"tie_word_embeddings", "1"}}, "tie_word_embeddings is 1; allowed: true or false"},
    {{{"attention_bias", "\"yes\""}}, "attention_bias is \"yes\"; allowed: true or false"},
    {{{"rms_norm_eps", "-1e-05"}}, "rms_norm_eps is -1e-05; allowed: a number from 0.0 to 1.0"},
    {{{"rope_theta", "0"}}, "rope_theta is 0; allowed: a number from 1.0 to 1000000000000.0"},
    {{{"rope_scaling", "4"}}, "rope_scaling is 4; allowed: an object"},
    {{{"rope_scaling", "{\"type\": \"dynamic\"}"}}, "rope_scaling.factor is missing"},
    {{{"rope_theta", "1"}, {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 2.0}"}},
     "rope_scaling.rope_type is yarn and rope_theta 1.000000; allowed: more than 1"},
    {{{"rope_scaling",
       "{\"rope_type\": \"yarn\", \"factor\": 2.0, \"beta_fast\": 1, \"beta_slow\": 2}"}},
     "rope_scaling.beta_fast is 1; allowed: beta_slow or more"},
    {{{"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 2.0, \"attention_factor\": -1}"}},
     "rope_scaling.attention_factor is -1; allowed: a number from 1e-06 to 1000000.0"},
    {{{"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 2.0, \"truncate\": 1}"}},
     "rope_scaling.truncate is 1; allowed: true or false"},
    {{{"original_max_position_embeddings", "0"},
      {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 2.0}"}},
     "original_max_position_embeddings is 0; allowed: an integer from 1 to 16777216"},
    {{{"rope_parameters", "{\"rope_type\": \"longrope\"}"}},
     "rope_parameters.rope_type is \"longrope\"; allowed: default, linear, llama3, "
     "yarn or dynamic"},
    {{{"rope_parameters", "{\"partial_rotary_factor\": 0.25}"}},
     "rope_parameters.partial_rotary_factor is 0.25; allowed: 1"},
    {{{"rope_scaling", "{\"type\": \"linear\"}"}}, "rope_scaling.factor is missing"},
    {{{"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8.0}"}},
     "rope_scaling.low_freq_factor is missing"},
    {{{"rope_scaling",
       "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 4.0, "
       "\"high_freq_factor\": 4.0}"}},
     "rope_scaling.high_freq_factor is 4.0; allowed: more than low_freq_factor"},
    {{{"eos_token_id", "128"}},
     "eos_token_id is 128; allowed: an integer from 0 to 127, or a list of those"},
    {{{"eos_token_id", "[1, -1]"}},
     "eos_token_id is [1,-1]; allowed: an integer from 0 to 127, or a list of those"},
    {{{"rope_parameters", "{\"full_attention\": {\"rope_type\": \"default\"}}"}},
     "rope_parameters.full_attention is set: rope parameters that differ between "
     "layers cannot be served"},
    {{{"bos_token_id", "500"}}, "bos_token_id is 500; allowed: an integer from 0 to 127"},
};

TEST(ModelConfigTest, UnservableModelIsRefusedInOneLine) {
  for (const Refusal& refusal : kRefusals) ExpectRefused(refusal, "diffllama");
  ExpectRefused({{{"mlp_bias", "2"}}, "mlp_bias is 2; allowed: true or false"}, "llama");
}

TEST(ModelConfigTest, GenerationConfigIsCheckedToo) {
  const std::vector<std::pair<std::string, std::string>> refusals = {
      {"{\"eos_token_id\": [1, 999]}",
       "generation_config.json: eos_token_id is [1,999]; allowed: an integer from 0 to 127, or a "
       "list "
       "of those"},
      {"{\"temperature\": -1}",
       "generation_config.json: temperature is -1; allowed: a number from 0.0 to 100.0"},
      {"{\"top_p\": 0}", "generation_config.json: top_p is 0; allowed: more than 0"},
      {"{\"top_k\": 1.5}",
       "generation_config.json: top_k is 1.5; allowed: an integer from -1 to 2147483647"},
      {"{\"repetition_penalty\": 0}",
       "generation_config.json: repetition_penalty is 0; allowed: a number from 0.01 to 100.0"},
      {"{", "generation_config.json: not valid JSON at byte 2"},
  };
  for (const auto& [generation, line] : refusals) {
    const Result<ModelConfig> config = LoadWith({}, "diffllama", generation);
    ASSERT_FALSE(config.ok()) << line;
    EXPECT_EQ(config.status().message(), line);
  }
}

TEST(ModelConfigTest, GenerationConfigThatIsADanglingLinkIsRefused) {
  TemporaryDirectory directory;
  WriteFile(directory.path() / "config.json", TinyConfigJson({}));
  std::filesystem::create_symlink("nowhere", directory.path() / "generation_config.json");
  EXPECT_FALSE(LoadModelConfig(directory.path().string()).ok());
}

TEST(ModelConfigTest, SamplingDefaultsAndAllEosIdsComeFromGenerationConfig) {
  const Result<ModelConfig> config = LoadWith(
      {{"bos_token_id", "1"}}, "diffllama",
      "{\"eos_token_id\": [5, 7], \"temperature\": 0.7, \"top_p\": 0.9, \"top_k\": 20, "
      "\"min_p\": 0.05, \"max_new_tokens\": 99, \"repetition_penalty\": 1.1, \"do_sample\": true}");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{5, 7}));
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_EQ(config->default_temperature, 0.7f);
  EXPECT_EQ(config->default_top_p, 0.9f);
  EXPECT_EQ(config->default_top_k, 20);
  EXPECT_EQ(config->default_min_p, 0.05f);
  EXPECT_EQ(config->default_max_tokens, 99);
  EXPECT_EQ(config->default_repetition_penalty, 1.1f);

  const Result<ModelConfig> without = LoadWith({{"eos_token_id", "[3, 4]"}}, "diffllama",
                                               "{\"max_length\": 9}");
  ASSERT_TRUE(without.ok()) << without.status().message();
  EXPECT_EQ(without->eos_token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_FALSE(without->default_temperature || without->default_top_p || without->default_top_k);
  EXPECT_FALSE(without->default_min_p || without->default_max_tokens);
}

TEST(ModelConfigTest, TopKOfMinusOneMeansAllTokens) {
  EXPECT_EQ(LoadWith({}, "diffllama", "{\"top_k\": -1}")->default_top_k, 0);
}

TEST(ModelConfigTest, TokenizersEndIsAddedOnceAndOnlyIfItHasARow) {
  ModelConfig config = LoadWith({{"eos_token_id", "[3, 4]"}}, "diffllama", "{}").value();
  config.AddEndOfText(std::nullopt);
  config.AddEndOfText(config.vocab_size);
  config.AddEndOfText(4);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{3, 4}));
  config.AddEndOfText(5);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{3, 4, 5}));
}

TEST(ModelConfigTest, BothRopeSpellingsMeanTheSame) {
  const std::string llama3 = "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0";
  const std::vector<Changes> spellings = {
      {{"rope_theta", "5e5"}, {"rope_scaling", "{\"rope_type\": \"llama3\", " + llama3 + "}"}},
      {{"rope_theta", "5e5"}, {"rope_scaling", "{\"type\": \"llama3\", " + llama3 + "}"}},
      {{"rope_theta", ""},
       {"rope_parameters", "{\"rope_type\": \"llama3\", \"rope_theta\": 5e5, " + llama3 + "}"}},
      {{"rope_theta", "5e5"},
       {"rope_parameters", "{\"rope_type\": \"llama3\", " + llama3 + "}"},
       {"rope_scaling", "null"}},
      {{"rope_theta", "5e5"},
       {"rope_parameters", "{\"rope_type\": \"llama3\", " + llama3 + "}"},
       {"rope_scaling", "{}"}},
  };
  for (const Changes& changes : spellings) {
    const Result<ModelConfig> config = LoadWith(changes);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->rope.type, RopeConfig::Type::kLlama3);
    EXPECT_EQ(config->rope.theta, 5e5);
    EXPECT_EQ(config->rope.factor, 8.0);
    EXPECT_EQ(config->rope.low_freq_factor, 1.0);
    EXPECT_EQ(config->rope.high_freq_factor, 4.0);
    EXPECT_EQ(config->rope.original_max_positions, 256)
        << "max_position_embeddings, where the scaling does not say";
  }
}

// Expected values: transformers' own functions, in float32.
TEST(InverseFrequenciesTest, FrequenciesEqualTransformers) {
  RopeConfig rope;
  rope.type = RopeConfig::Type::kLlama3;
  rope.factor = 8.0;
  rope.original_max_positions = 64;
  const std::vector<double> llama3 = {1,       0.24438459,    0.013042256,   0.0039528473,
                                      0.00125, 0.00039528473, 0.00012500001, 3.9528473e-05};
  const std::vector<double> found = InverseFrequencies(rope, 16);
  ASSERT_EQ(found.size(), llama3.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i] / llama3[i], 1, 2e-7) << i;

  rope.type = RopeConfig::Type::kLinear;
  rope.factor = 4.0;
  const std::vector<double> linear = {0.25,         0.079056941,   0.025,         0.0079056947,
                                      0.0024999999, 0.00079056947, 0.00025000001, 7.9056947e-05};
  const std::vector<double> found_linear = InverseFrequencies(rope, 16);
  for (size_t i = 0; i < linear.size(); ++i) EXPECT_NEAR(found_linear[i] / linear[i], 1, 2e-7) << i;
}

TEST(InverseFrequenciesTest, YarnEqualsTransformers) {
  const auto rope_of = [](const std::string& scaling) {
    const Result<ModelConfig> config = LoadWith(
        {{"rope_scaling", scaling}, {"max_position_embeddings", "512"}});
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config->rope;
  };
  struct Expected {
    std::string scaling;
    double attention_factor;
    std::vector<double> frequencies;
  };
  for (
      const Expected& expected :
      {Expected{R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128})",
                1.138629436111989,
                {1, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466,
                 0.000250000012, 7.90569466e-05}},
       Expected{R"({"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 128})",
                1.138629436111989,
                {1, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466,
                 0.000250000012, 7.90569466e-05}},
       Expected{
           R"({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "truncate": false,
                     "beta_fast": 4.0, "beta_slow": 0.5})",
           1.2079441541679836,
           {1, 0.28740859, 0.0424417965, 0.00395284733, 0.00124999997, 0.000395284733,
            0.000125000006, 3.95284733e-05}}}) {
    const RopeConfig rope = rope_of(expected.scaling);
    EXPECT_NEAR(rope.attention_factor, expected.attention_factor, 1e-15);
    const std::vector<double> found = InverseFrequencies(rope, 16);
    ASSERT_EQ(found.size(), expected.frequencies.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i] / expected.frequencies[i], 1, 2e-7) << i;
  }
  const RopeConfig given = rope_of(
      R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 0.5})");
  EXPECT_EQ(given.attention_factor, 0.5);
  const RopeConfig both = rope_of(
      R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 2, "mscale_all_dim": 0.5})");
  EXPECT_NEAR(both.attention_factor, (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-15);
}

TEST(InverseFrequenciesTest, DynamicEqualsTheDefaultWithinTheServedContext) {
  const Result<ModelConfig> config = LoadWith(
      {{"rope_scaling", R"({"type": "dynamic", "factor": 4.0})"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope.type, RopeConfig::Type::kDynamic);
  EXPECT_EQ(InverseFrequencies(config->rope, 16), InverseFrequencies(RopeConfig{}, 16));
}

TEST(ModelConfigTest, OriginalLengthBesideTheScalingWins) {
  const Result<ModelConfig> config = LoadWith(
      {{"original_max_position_embeddings", "33"},
       {"rope_scaling", R"({"rope_type": "yarn", "factor": 4.0,
                                                 "original_max_position_embeddings": 128})"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope.original_max_positions, 33);
}

TEST(DiffLlamaFamilyTest, HeadsArePairedByHalves) {
  const Result<ModelConfig> config = LoadWith(
      {{"num_attention_heads", "8"}, {"num_key_value_heads", "4"}, {"head_dim", "6"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  const DiffSpec& spec = config->attention;
  EXPECT_EQ(spec.num_q1_heads, 4);
  EXPECT_EQ(spec.num_q2_heads, 4);
  EXPECT_EQ(spec.num_kv_groups, 2);
  EXPECT_EQ(spec.k_maps, 2);
  EXPECT_EQ(spec.head_dim, 6);
  EXPECT_EQ(spec.v_dim, 12);
  EXPECT_EQ(spec.sub_norm, SubNorm::kPlain);
  EXPECT_EQ(config->head_order.q, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(config->head_order.k, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(config->head_order.v, (std::vector<int32_t>{0, 2, 1, 3}));
  ASSERT_EQ(config->lambda_init.size(), 2u);
  EXPECT_FLOAT_EQ(config->lambda_init[0], 0.2f);
  EXPECT_FLOAT_EQ(config->lambda_init[1], 0.35550907f);
}

TEST(DiffTransformerFamilyTest, HeadsArePairedSideBySideAndCountedInPairs) {
  const Result<ModelConfig> config = LoadWith(
      {{"num_attention_heads", "4"}, {"num_key_value_heads", "2"}, {"rms_norm_eps", "1e-6"}},
      "diff_transformer");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const DiffSpec& spec = config->attention;
  EXPECT_EQ(spec.num_q1_heads, 4);
  EXPECT_EQ(spec.num_q2_heads, 4);
  EXPECT_EQ(spec.num_kv_groups, 2);
  EXPECT_EQ(spec.k_maps, 2);
  EXPECT_EQ(spec.head_dim, 4) << "hidden_size / 4 / 2";
  EXPECT_EQ(spec.v_dim, 8);
  EXPECT_EQ(spec.sub_norm, SubNorm::kAffine);
  EXPECT_EQ(spec.sub_norm_eps, 1e-5f);
  EXPECT_EQ(config->norm_eps, 1e-6f);
  EXPECT_EQ(config->rope.style, RopeStyle::kInterleaved);
  EXPECT_EQ(config->names.attention_out, "out_proj");
  EXPECT_EQ(config->head_order.q, (std::vector<int32_t>{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(config->head_order.k, (std::vector<int32_t>{0, 2, 1, 3}));
  EXPECT_EQ(config->head_order.v, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_FLOAT_EQ(config->lambda_init.at(0), 0.2f);
}

TEST(DiffTransformerFamilyTest, AblationsAreReadFromTheirKeys) {
  const auto with = [](const Changes& changes) { return LoadWith(changes, "diff_transformer"); };
  EXPECT_EQ(with({{"subln_affine", "false"}})->attention.sub_norm, SubNorm::kPlain);
  EXPECT_EQ(with({{"use_subln", "false"}})->attention.sub_norm, SubNorm::kNone);
  EXPECT_EQ(with({{"lambda_init", "0.5"}})->lambda_init, (std::vector<float>{0.5f, 0.5f}));
  EXPECT_EQ(with({{"lambda_init", "\"exp\""}})->lambda_init, with({})->lambda_init);
  EXPECT_EQ(with({{"lambda_init", "\"const\""}}).status().message(),
            "config.json: lambda_init is \"const\"; allowed: \"exp\" or a number");
  EXPECT_EQ(with({{"max_position_embeddings", ""}}).status().message(),
            "config.json: max_position_embeddings is missing");
  EXPECT_EQ(with({{"num_attention_heads", "3"}, {"num_key_value_heads", "3"}}).status().message(),
            "config.json: num_attention_heads is 3; allowed: a divisor of hidden_size / 2 = 16, or "
            "head_dim to be given");
}

TEST(DiffTransformerV2FamilyTest, BothMapsReadOneKeyHead) {
  const Result<ModelConfig> config = LoadWith({{"head_dim", "8"}}, "diff_transformer_v2");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const DiffSpec& spec = config->attention;
  EXPECT_EQ(spec.num_q1_heads, 4);
  EXPECT_EQ(spec.num_q2_heads, 4);
  EXPECT_EQ(spec.num_kv_groups, 2);
  EXPECT_EQ(spec.k_maps, 1);
  EXPECT_EQ(spec.v_dim, 8);
  EXPECT_EQ(spec.lambda_kind, LambdaKind::kPerTokenHead);
  EXPECT_EQ(spec.sub_norm, SubNorm::kNone);
  EXPECT_EQ(config->head_order.q, (std::vector<int32_t>{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(config->head_order.k, (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(config->lambda_init.empty());
  EXPECT_EQ(LoadWith({}, "diff_transformer_v2").status().message(),
            "config.json: head_dim is missing");
}

const Changes kGroupedMotif = {{"hidden_act", "\"poly_norm\""},
                               {"num_attention_heads", "10"},
                               {"num_noise_heads", "2"},
                               {"num_key_value_heads", "4"},
                               {"head_dim", "6"},
                               {"attn_rms_norm_eps", "1e-3"}};

TEST(MotifFamilyTest, LastHeadOfAGroupIsTheNoiseHeadOfTheOthers) {
  const Result<ModelConfig> config = LoadWith(kGroupedMotif, "motif");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const DiffSpec& spec = config->attention;
  EXPECT_EQ(spec.num_q1_heads, 8);
  EXPECT_EQ(spec.num_q2_heads, 2);
  EXPECT_EQ(spec.num_kv_groups, 2);
  EXPECT_EQ(spec.out_width(), 8 * 12);
  EXPECT_EQ(spec.sub_norm, SubNorm::kAffine);
  EXPECT_EQ(spec.sub_norm_eps, 1e-3f);
  EXPECT_EQ(config->mlp, MlpKind::kPolyNorm);
  EXPECT_EQ(config->head_order.q, (std::vector<int32_t>{0, 1, 2, 3, 5, 6, 7, 8, 4, 9}));
  EXPECT_EQ(config->head_order.k, (std::vector<int32_t>{0, 2, 1, 3}));
  EXPECT_EQ(config->head_order.v, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_FLOAT_EQ(config->lambda_init.at(0), -0.009915285f);
  EXPECT_FLOAT_EQ(config->lambda_init.at(1), 0.2f);
}

TEST(MotifFamilyTest, WithoutNoiseHeadsHeadsArePairedSideBySide) {
  const Result<ModelConfig> config = LoadWith(
      {{"hidden_act", "\"poly_norm\""}, {"num_key_value_heads", ""}, {"model_type", "\"Motif\""}},
      "motif");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->attention.num_q1_heads, 2);
  EXPECT_EQ(config->attention.num_q2_heads, 2);
  EXPECT_EQ(config->attention.num_kv_groups, 2);
  EXPECT_EQ(config->head_order.q, (std::vector<int32_t>{0, 2, 1, 3}));
}

TEST(MotifFamilyTest, BiasesHaveTheirOwnKeys) {
  const auto biases = [](const Changes& more) {
    Changes changes = kGroupedMotif;
    changes.insert(more.begin(), more.end());
    const Result<ModelConfig> config = LoadWith(changes, "motif");
    return std::vector<bool>{config->qkv_bias, config->attention_out_bias, config->mlp_bias};
  };
  EXPECT_EQ(biases({}), (std::vector<bool>{false, false, false}));
  EXPECT_EQ(biases({{"use_bias", "true"}}), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(biases({{"use_bias", "true"}, {"qkv_bias", "false"}}),
            (std::vector<bool>{false, true, true}));
  EXPECT_EQ(biases({{"qkv_bias", "true"}}), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(biases({{"attention_bias", "true"}}), (std::vector<bool>{true, true, false}));
}

TEST(MotifFamilyTest, UnservableModelIsRefusedInOneLine) {
  const auto refusal = [](const Changes& more) {
    Changes changes = kGroupedMotif;
    for (const auto& [key, value] : more) changes[key] = value;
    const Result<ModelConfig> config = LoadWith(changes, "motif");
    return config.ok() ? "accepted" : config.status().message();
  };
  EXPECT_EQ(refusal({{"num_experts", "384"}}),
            "config.json: num_experts is set: mixture of experts cannot be served");
  EXPECT_EQ(refusal({{"kv_lora_rank", "512"}}),
            "config.json: kv_lora_rank is set: latent attention (MLA, GDLA) cannot be served");
  EXPECT_EQ(refusal({{"hidden_act", "\"silu\""}}),
            "config.json: hidden_act is \"silu\"; allowed: poly_norm");
  EXPECT_EQ(refusal({{"k_ratio", "2"}}), "config.json: k_ratio is 2; allowed: 1");
  EXPECT_EQ(refusal({{"head_dim", ""}, {"hidden_size", "60"}}),
            "config.json: head_dim is missing, and num_noise_heads needs it");
  EXPECT_EQ(
      refusal({{"num_noise_heads", "3"}}),
      "config.json: num_noise_heads is 3; allowed: a proper divisor of num_attention_heads = 10");
  EXPECT_EQ(
      refusal({{"num_noise_heads", "10"}}),
      "config.json: num_noise_heads is 10; allowed: a proper divisor of num_attention_heads = 10");
  EXPECT_EQ(refusal({{"num_key_value_heads", "8"}}),
            "config.json: num_key_value_heads is 8; allowed: twice a divisor of the 2 noise heads");
  EXPECT_EQ(refusal({{"num_key_value_heads", "3"}}),
            "config.json: num_key_value_heads is 3; allowed: an even number: key and value heads "
            "form pairs");
  EXPECT_EQ(refusal({{"sliding_window", "512"}, {"use_sliding_window", "true"}}),
            "config.json: sliding_window is switched on: windowed attention cannot be served");
}

TEST(LlamaFamilyTest, HasOneMapAndItsOwnDefaults) {
  const Result<ModelConfig> config = LoadWith(
      {{"rms_norm_eps", ""}, {"num_key_value_heads", ""}, {"mlp_bias", "true"}}, "llama");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_FALSE(config->attention.has_second_map());
  EXPECT_EQ(config->attention.num_kv_groups, 4)
      << "num_attention_heads, where num_key_value_heads is absent";
  EXPECT_EQ(config->attention.v_dim, 8);
  EXPECT_EQ(config->norm_eps, 1e-6f);
  EXPECT_TRUE(config->mlp_bias);
  EXPECT_FALSE(config->qkv_bias || config->attention_out_bias);
  EXPECT_TRUE(config->lambda_init.empty());
}

TEST(ModelConfigTest, KeysThatChangeNothingAreAccepted) {
  const Result<ModelConfig> config = LoadWith(
      {{"sliding_window", "null"},
       {"use_cache", "true"},
       {"pretraining_tp", "2"},
       {"mlp_bias", "true"},
       {"auto_map", "{\"AutoModelForCausalLM\": \"modeling.X\"}"},
       {"layer_types", "[\"full_attention\"]"},
       {"id2label", "{\"0\": \"a\"}"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_FALSE(config->mlp_bias) << "transformers' DiffLlama has no MLP biases";
  EXPECT_TRUE(LoadWith({{"sliding_window", "4096"}, {"use_sliding_window", "false"}}).ok());
}

}  // namespace
}  // namespace diffserve
