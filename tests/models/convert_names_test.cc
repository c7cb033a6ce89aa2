// SPDX-License-Identifier: Apache-2.0
// The table of names (tensor_names.h): source tensors become the model's by names and shapes only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "models/convert/tensor_names.h"
#include "models/load_config.h"
#include "tests/testing/models/config_changes.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr int kHidden = 16, kInner = 24;

std::string ConfigJson(const std::string& model_type, const std::string& more) {
  return "{\"model_type\": \"" + model_type +
         "\", \"vocab_size\": 32, \"hidden_size\": 16, \"intermediate_size\": 24, " +
         "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
         "\"head_dim\": 4, " +
         "\"max_position_embeddings\": 64" + more + "}";
}

ModelConfig ConfigOf(const std::string& model_type, const std::string& more = "") {
  TemporaryDirectory dir;
  WriteFile(dir.path() / "config.json", ConfigJson(model_type, more));
  const Result<ModelConfig> config = LoadModelConfig(dir.path());
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : ModelConfig();
}

SourceTensor Tensor(const std::string& name, std::vector<int64_t> shape = {4}) {
  SourceTensor tensor;
  tensor.name = name;
  tensor.entry.dtype_name = "F32";
  tensor.entry.is_float = true;
  tensor.entry.shape = std::move(shape);
  return tensor;
}

std::vector<SourceTensor> Tensors(const std::vector<std::string>& names) {
  std::vector<SourceTensor> tensors;
  for (const std::string& name : names) tensors.push_back(Tensor(name));
  return tensors;
}

Result<TensorPlan> Plan(const std::string& model_type, const std::vector<SourceTensor>& sources,
                        const std::string& more = "") {
  return PlanTensors(ConfigOf(model_type, more), sources, "SRC");
}

std::vector<std::string> Names(const Result<TensorPlan>& plan) {
  std::vector<std::string> names;
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  for (size_t i = 0; plan.ok() && i < plan->tensors.size(); ++i)
    names.push_back(plan->tensors[i].name);
  return names;
}

std::string RefusalOf(const Result<TensorPlan>& plan) {
  EXPECT_FALSE(plan.ok());
  return plan.status().message();
}

TEST(TensorNamesTest, NamesOfUnilmAndItsTrainersAreMapped) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"model.layers.1.self_attn.q_proj.weight",
       {"1.q_proj.weight", "layers.1.self_attn.q_proj.weight", "layers.1.attn.q_proj.weight",
        "blocks.1.attention.wq.weight", "model.layers.1.self_attn.q_proj.weight",
        "module.decoder.layers.1.mixer.q_proj.weight"}},
      {"model.layers.1.self_attn.out_proj.weight",
       {"1.out_proj.weight", "layers.1.attn.o_proj.weight", "layers.1.attention.wo.weight"}},
      {"model.layers.0.self_attn.lambda_q1",
       {"0.lambda_q1", "decoder.layers.0.self_attn.lambda_q1"}},
      {"model.layers.0.self_attn.subln.weight",
       {"0.subln.weight", "layers.0.attn.subln.weight", "blocks.0.attn.subln.scale"}},
      {"model.layers.1.input_layernorm.weight",
       {"layers.1.norm_attn.scale", "layers.1.input_layernorm.weight",
        "layers.1.attention_norm.weight", "layers.1.self_attn_layer_norm.weight",
        "layers.1.mixer_layer_norm.weight"}},
      {"model.layers.1.post_attention_layernorm.weight",
       {"layers.1.post_attention_layernorm.weight", "layers.1.ffn_norm.weight",
        "layers.1.final_layer_norm.weight", "layers.1.norm_mlp.scale"}},
      {"model.layers.0.mlp.gate_proj.weight",
       {"layers.0.mlp.gate_proj.weight", "layers.0.ffn.gate_proj.weight",
        "layers.0.feed_forward.w1.weight", "layers.0.ffn.fc1.weight", "blocks.0.mlp.gate.weight"}},
      {"model.layers.0.mlp.up_proj.weight",
       {"layers.0.ffn.up_proj.weight", "layers.0.feed_forward.w3.weight",
        "layers.0.ffn.gate.weight", "blocks.0.mlp.up.weight"}},
      {"model.layers.0.mlp.down_proj.weight",
       {"layers.0.mlp.down_proj.weight", "layers.0.feed_forward.w2.weight",
        "layers.0.ffn.fc2.weight", "blocks.0.mlp.down.weight"}},
      {"model.embed_tokens.weight",
       {"embed_tokens.weight", "tok_embeddings.weight", "model.embed_tokens.weight",
        "tok_embed.weight"}},
      {"model.norm.weight",
       {"norm.weight", "model.norm.weight", "layer_norm.weight", "final_norm.scale"}},
      {"lm_head.weight", {"lm_head.weight", "output.weight", "output_projection.weight"}},
  };
  for (const auto& [target, sources] : cases) {
    for (const std::string& source : sources) {
      EXPECT_THAT(Names(Plan("diff_transformer", Tensors({source}))), ElementsAre(target))
          << source;
    }
  }
  EXPECT_THAT(
      Names(Plan("diff_transformer_v2", Tensors({"0.o_proj.weight", "0.lambda_proj.weight"}))),
      ElementsAre("model.layers.0.self_attn.o_proj.weight",
                  "model.layers.0.self_attn.lambda_proj.weight"));
}

TEST(TensorNamesTest, OuterNamesMayBeBelowTheModulesThatHoldTheLayers) {
  const std::vector<std::string> sources = {"module.model.layers.0.attn.wq.weight",
                                            "module.model.tok_embeddings.weight",
                                            "module.output.weight", "module.model.norm.weight"};
  EXPECT_THAT(Names(Plan("diff_transformer", Tensors(sources))),
              ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                          "model.norm.weight", "lm_head.weight"));
}

TEST(TensorNamesTest, FusedTensorsAreDividedByTheRowsThatTheConfigImplies) {
  // V1: q has 2 * 2 heads, k has 2 * 1, v has one of twice the width.
  const std::vector<SourceTensor> sources = {
      Tensor("layers.0.attn.qkv_proj.weight", {16 + 8 + 8, kHidden}),
      Tensor("layers.0.mlp.gate_up_proj.weight", {2 * kInner, kHidden})};
  const Result<TensorPlan> plan = Plan("diff_transformer", sources);
  ASSERT_THAT(Names(plan), ElementsAre("model.layers.0.self_attn.q_proj.weight",
                                       "model.layers.0.self_attn.k_proj.weight",
                                       "model.layers.0.self_attn.v_proj.weight",
                                       "model.layers.0.mlp.gate_proj.weight",
                                       "model.layers.0.mlp.up_proj.weight"));
  const std::pair<int64_t, int64_t> rows[] = {
      {0, 16}, {16, 8}, {24, 8}, {0, kInner}, {kInner, kInner}};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(plan->tensors[i].first_row, rows[i].first);
    EXPECT_THAT(plan->tensors[i].shape, ElementsAre(rows[i].second, kHidden));
  }
  EXPECT_EQ(plan->num_divided, 2);
  EXPECT_EQ(plan->num_renamed, 0);
  // V2: k and v have one head each, of single width.
  EXPECT_EQ(Names(Plan("diff_transformer_v2", {Tensor("0.qkv_proj.weight", {16 + 4 + 4, kHidden})}))
                .size(),
            3u);
  EXPECT_EQ(
      RefusalOf(Plan("diff_transformer", {Tensor("layers.0.attn.qkv_proj.weight", {48, kHidden})})),
      "SRC: tensor layers.0.attn.qkv_proj.weight has shape [48, 16]; allowed: 16 + 8 + 8 rows from "
      "config.json");
  EXPECT_EQ(
      RefusalOf(Plan("diff_transformer", {Tensor("0.feed_forward.w13.weight", {})})),
      "SRC: tensor 0.feed_forward.w13.weight has shape []; allowed: 24 + 24 rows from config.json");
}

TEST(TensorNamesTest, OrderEqualsTheModels) {
  const std::vector<std::string> sources = {"lm_head.weight",
                                            "model.norm.weight",
                                            "model.layers.1.mlp.down_proj.weight",
                                            "model.layers.0.mlp.up_proj.weight",
                                            "model.layers.0.self_attn.q_proj.weight",
                                            "model.layers.0.input_layernorm.weight",
                                            "model.embed_tokens.weight"};
  EXPECT_THAT(Names(Plan("llama", Tensors(sources))),
              ElementsAre(sources[6], sources[5], sources[4], sources[3], sources[2], sources[1],
                          sources[0]));
}

TEST(TensorNamesTest, FinalNormOfAFamilyPrecedesTheOutputMatrix) {
  const std::vector<std::string> sources = {
      "lm_head.weight", "model.final_layernorm.weight", "model.final_layernorm.bias",
      "model.layers.3.attn.Wqkv.weight", "model.embed_tokens.weight"};
  const Result<ModelConfig> config = LoadWith({{"num_hidden_layers", "4"}, {"sliding_window", "4"}},
                                              "phi4flash");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(Names(PlanTensors(*config, Tensors(sources), "SRC")),
              ElementsAre(sources[4], sources[3], sources[2], sources[1], sources[0]));
}

TEST(TensorNamesTest, UnneededTensorsAreDroppedByName) {
  const Result<TensorPlan> plan = Plan(
      "llama", Tensors({"model.layers.0.self_attn.rotary_emb.inv_freq", "rope.freqs",
                        "model.rotary_emb.inv_freq", "model.norm.weight", "opt.step",
                        "opt.layers.0.self_attn.q_proj.weight.m"}));
  EXPECT_THAT(Names(plan), ElementsAre("model.norm.weight"));
  EXPECT_EQ(plan->dropped.size(), 5u);
}

TEST(TensorNamesTest, OtherFamiliesAcceptOnlyTheNamesOfTransformers) {
  for (const char* name :
       {"model.layers.0.self_attn.wq.weight", "layers.0.self_attn.q_proj.weight", "norm.weight",
        "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.self_attn.out_proj.weight",
        "model.layers.0.mlp.gate.weight", "model.final_norm.scale"}) {
    EXPECT_THAT(RefusalOf(Plan("llama", Tensors({name}))),
                EndsWith(std::string("for tensor ") + name +
                         "; allowed: model.embed_tokens, model.norm, lm_head, and in layers.N. "
                         "input_layernorm, self_attn.q_proj, self_attn.k_proj, self_attn.v_proj, "
                         "self_attn.o_proj, post_attention_layernorm, mlp.gate_proj, mlp.up_proj, "
                         "mlp.down_proj"));
  }
}

TEST(TensorNamesTest, UnknownTensorIsRefusedWithTheAcceptedNames) {
  EXPECT_EQ(
      RefusalOf(Plan("diff_transformer_v2", Tensors({"layers.0.a", "layers.0.b", "layers.0.c",
                                                     "layers.0.d", "layers.0.e"}))),
      "SRC: has no place in the diff_transformer_v2 model of config.json with 2 layers for tensor "
      "layers.0.a, layers.0.b, "
      "layers.0.c and 2 more; allowed: embed_tokens|tok_embeddings|tok_embed, norm|layer_norm, "
      "final_norm.scale, lm_head|output|output_projection, and "
      "in layers.N. input_layernorm|attention_norm|self_attn_layer_norm|mixer_layer_norm, "
      "norm_attn.scale, "
      "[self_attn|attn|attention|mixer.]q_proj|wq, [self_attn|attn|attention|mixer.]k_proj|wk, "
      "[self_attn|attn|attention|mixer.]v_proj|wv, [self_attn|attn|attention|mixer.]qkv_proj|wqkv, "
      "[self_attn|attn|attention|mixer.]out_proj|o_proj|wo, "
      "[self_attn|attn|attention|mixer.]lambda_proj, "
      "post_attention_layernorm|ffn_norm|final_layer_norm, norm_mlp.scale, "
      "(mlp|ffn|feed_forward).gate_proj|w1, (ffn).fc1, (mlp).gate, "
      "(mlp|ffn|feed_forward).up_proj|w3, (ffn).gate, (mlp).up, "
      "(mlp|ffn|feed_forward).gate_up_proj|w13, "
      "(mlp|ffn|feed_forward).down_proj|w2, (ffn).fc2, (mlp).down");
  // Known names that this model does not have: the layer, the bias, the norm, the kind of lambda, a
  // suffix, a part of a name.
  for (const char* name :
       {"layers.2.attn.q_proj.weight", "layers.0.attn.q_proj.bias",
        "layers.0.attn.lambda_proj.weight", "layers.0.attn.q_proj", "layers.0.attn.q_proj.weight.x",
        "layers.0.attn.q_pro", "layers.0.ffn", "0", "1.", "layers.0.attn.", "encoder.norm.weight",
        "layers.0.mlp.act_fn.weight", "layers.0.norm_attn.weight", "layers.0.attention_norm.scale",
        "layers.0.mlp.gate.scale", "final_norm.weight", "option.weight", "opt"}) {
    EXPECT_THAT(RefusalOf(Plan("diff_transformer", Tensors({name}))),
                HasSubstr(std::string("for tensor ") + name + ";"));
  }
  EXPECT_THAT(RefusalOf(Plan("diff_transformer", Tensors({"layers.0.attn.subln.weight"}),
                             ", \"use_subln\": false")),
              HasSubstr("subln"));
}

TEST(TensorNamesTest, TwoTensorsOfOneNameAreRefused) {
  EXPECT_EQ(RefusalOf(Plan("diff_transformer",
                           Tensors({"layers.0.attn.q_proj.weight", "layers.0.wq.weight"}))),
            "SRC: tensors layers.0.attn.q_proj.weight and layers.0.wq.weight are both "
            "model.layers.0.self_attn.q_proj.weight; "
            "allowed: one of them");
  EXPECT_THAT(RefusalOf(Plan("diff_transformer", {Tensor("0.qkv_proj.weight", {32, kHidden}),
                                                  Tensor("0.k_proj.weight")})),
              HasSubstr("are both model.layers.0.self_attn.k_proj.weight"));
  EXPECT_THAT(RefusalOf(Plan("diff_transformer", Tensors({"norm.weight", "model.norm.weight"}))),
              HasSubstr("both model.norm"));
  EXPECT_EQ(RefusalOf(Plan("diff_transformer", Tensors({"self_decoder.layers.0.wq.weight",
                                                        "cross_decoder.layers.1.wq.weight"}))),
            "SRC: layers stand in two lists, in tensors self_decoder.layers.0.wq.weight and "
            "cross_decoder.layers.1.wq.weight; "
            "allowed: one list");
}

}  // namespace
}  // namespace diffserve
