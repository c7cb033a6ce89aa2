// SPDX-License-Identifier: Apache-2.0
// Run directories of diff-mlx as sources of `diffserve convert`. The model has the bits of the same
// weights written as `diff_transformer`, and a source that would be another model is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "models/convert/convert.h"
#include "models/load_config.h"
#include "models/model.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/short_prompt.h"
#include "tests/testing/models/unilm_state_dict.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kServedConfig[] = R"({
  "architectures": ["DiffTransformerForCausalLM"],
  "model_type": "diff_transformer",
  "vocab_size": 96,
  "hidden_size": 32,
  "intermediate_size": 40,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "num_key_value_heads": 2,
  "head_dim": 8,
  "max_position_embeddings": 64,
  "hidden_act": "silu",
  "lambda_init": "exp",
  "rms_norm_eps": 1e-05,
  "rope_theta": 20000,
  "tie_word_embeddings": true,
  "torch_dtype": "float32"
}
)";

// config.json as diff-mlx writes it, with keys of "model" set to JSON text or removed.
std::string ConfigOfDiffMlx(const std::map<std::string, std::string>& changes = {}) {
  std::map<std::string, std::string> model = {{"dim", "32"},
                                              {"n_layers", "2"},
                                              {"n_heads_vanilla", "4"},
                                              {"qk_head_dim", "8"},
                                              {"vocab_size", "96"},
                                              {"mlp_intermediate", "40"},
                                              {"block_size", "64"},
                                              {"rope_base", "20000.0"},
                                              {"rms_eps", "1e-05"},
                                              {"tie_embeddings", "true"},
                                              {"amp_dtype", "\"bfloat16\""}};
  for (const auto& [key, value] : changes) model[key] = value;
  std::string json = "{\"model\": {";
  for (const auto& [key, value] : model) {
    if (!value.empty()) json += (json.ends_with("{") ? "\"" : ", \"") + key + "\": " + value;
  }
  return json + "}, \"train\": {\"peak_lr\": 0.0004}}";
}

FileTensor Random(const std::string& name, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  std::vector<float> values(static_cast<size_t>(count));
  FillDummyTensor(name, 5, DType::kFloat32, count, reinterpret_cast<std::byte*>(values.data()));
  const bool is_small = name.find("norm") == std::string::npos &&
                        name.find("lambda") == std::string::npos;
  for (float& value : values) value *= is_small ? 20.0f : 1.0f;  // from a deviation of 0.02
  return {name, "F32", std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4)};
}

// The model's tensors under the names of a served directory.
std::vector<FileTensor> ServedTensors() {
  std::vector<FileTensor> tensors = {Random("model.embed_tokens.weight", {96, 32})};
  for (const char* layer : {"0", "1"}) {
    const std::string at = std::string("model.layers.") + layer + ".";
    tensors.push_back(Random(at + "input_layernorm.weight", {32}));
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"})
      tensors.push_back(Random(at + "self_attn." + name + ".weight", {32, 32}));
    for (const char* name : {"q1", "k1", "q2", "k2"})
      tensors.push_back(Random(at + "self_attn.lambda_" + name, {8}));
    tensors.push_back(Random(at + "self_attn.subln.weight", {16}));
    tensors.push_back(Random(at + "post_attention_layernorm.weight", {32}));
    tensors.push_back(Random(at + "mlp.gate_proj.weight", {40, 32}));
    tensors.push_back(Random(at + "mlp.up_proj.weight", {40, 32}));
    tensors.push_back(Random(at + "mlp.down_proj.weight", {32, 40}));
  }
  tensors.push_back(Random("model.norm.weight", {32}));
  return tensors;
}

// The same under diff-mlx's names, with the prefix "model.".
std::vector<FileTensor> TensorsOfDiffMlx() {
  return Renamed(ServedTensors(), {{"embed_tokens", "tok_embed"},
                                   {"model.layers.", "model.blocks."},
                                   {"input_layernorm.weight", "norm_attn.scale"},
                                   {"post_attention_layernorm.weight", "norm_mlp.scale"},
                                   {"self_attn", "attn"},
                                   {"out_proj", "o_proj"},
                                   {"subln.weight", "subln.scale"},
                                   {"gate_proj", "gate"},
                                   {"up_proj", "up"},
                                   {"down_proj", "down"},
                                   {"model.norm.weight", "model.final_norm.scale"}});
}

// AdamW's state: two moments per tensor, its step and its learning rate.
std::vector<FileTensor> WithOptimizerState(std::vector<FileTensor> tensors) {
  const size_t count = tensors.size();
  for (size_t i = 0; i < count; ++i) {
    FileTensor moment = tensors[i];
    const std::string name = moment.name.substr(moment.name.find('.') + 1);
    for (const char* which : {".m", ".v"}) {
      moment.name = "opt." + name + which;
      tensors.push_back(moment);
    }
  }
  tensors.push_back({"opt.step", "U64", {}, std::string(8, '\1')});
  tensors.push_back({"opt.learning_rate", "F32", {}, std::string(4, '\0')});
  return tensors;
}

class ConvertDiffMlxTest : public ::testing::Test {
 protected:
  fs::path source() const { return directory_.path() / "source"; }
  fs::path result() const { return directory_.path() / "result"; }
  fs::path served() const { return directory_.path() / "served"; }

  void SetUp() override {
    fs::create_directory(source());
    fs::create_directory(served());
    WriteFile(served() / "config.json", kServedConfig);
    WriteFile(served() / "model.safetensors", SafetensorsBytes(ServedTensors()));
    Write(ConfigOfDiffMlx(), TensorsOfDiffMlx());
  }
  void Write(const std::string& config, const std::vector<FileTensor>& tensors) const {
    WriteFile(source() / "config.json", config);
    WriteFile(source() / "latest.safetensors", SafetensorsBytes(tensors));
  }
  Result<ConvertReport> Convert(const fs::path& from, const ConvertOptions& how) {
    ConvertOptions options = how;
    options.source_dir = from;
    options.output_dir = result();
    return ConvertCheckpoint(options, pool_);
  }
  ConvertReport Converted(const fs::path& from, const ConvertOptions& how = {}) {
    fs::remove_all(result());
    const Result<ConvertReport> report = Convert(from, how);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : ConvertReport();
  }
  // The error for the source; nothing may be left behind.
  std::string Refusal() {
    fs::remove_all(result());
    const Result<ConvertReport> report = Convert(source(), {});
    EXPECT_FALSE(report.ok());
    EXPECT_FALSE(fs::exists(result()));
    EXPECT_EQ(report.status().message().find('\n'), std::string::npos);
    return report.status().message();
  }
  // The error for a source whose config.json has the change.
  std::string Refusal(const std::string& key, const std::string& value) {
    WriteFile(source() / "config.json", ConfigOfDiffMlx({{key, value}}));
    const std::string start = (source() / "config.json").string() + ": ", found = Refusal();
    EXPECT_THAT(found, StartsWith(start));
    return found.substr(std::min(start.size(), found.size()));
  }
  std::vector<float> Logits(const fs::path& dir) {
    ModelOptions options;
    options.model_dir = dir;
    return ShortPromptLogits(options, pool_);
  }

  TemporaryDirectory directory_;
  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
};

TEST_F(ConvertDiffMlxTest, ConvertedModelHasTheBitsOfTheSameWeightsInTheServedForm) {
  const std::vector<float> expected = Logits(served());
  ASSERT_FALSE(expected.empty());
  EXPECT_TRUE(std::ranges::all_of(expected, [](float logit) { return std::isfinite(logit); }));
  const std::vector<FileTensor> tensors = TensorsOfDiffMlx();
  for (bool with_prefix : {true, false}) {
    std::vector<FileTensor> named = tensors;
    if (!with_prefix) named = Renamed(named, {{"model.", ""}});
    Write(ConfigOfDiffMlx(), named);
    const ConvertReport report = Converted(source());
    EXPECT_EQ(report.family, "diff_transformer");
    EXPECT_EQ(report.num_tensors, tensors.size());
    // With the prefix the names of q, k, v, o and lambda still differ, by "blocks" and "attn".
    EXPECT_EQ(report.num_renamed, static_cast<int>(tensors.size()));
    EXPECT_THAT(report.dropped, ElementsAre());
    EXPECT_EQ(FileBytes(result() / "config.json"), kServedConfig);
    EXPECT_TRUE(Logits(result()) == expected) << with_prefix;
  }
}

TEST_F(ConvertDiffMlxTest, ChangeOfAnyTensorChangesTheLogits) {
  const std::vector<float> expected = Logits(served());
  for (size_t i = 0; i < TensorsOfDiffMlx().size(); ++i) {
    std::vector<FileTensor> tensors = TensorsOfDiffMlx();
    // In the embedding, a row that the prompt uses; the exponent's last bit of one element.
    tensors[i].bytes[i == 0 ? size_t{3} * 32 * 4 + 2 : 2] ^= '\x80';
    Write(ConfigOfDiffMlx(), tensors);
    Converted(source());
    EXPECT_FALSE(Logits(result()) == expected) << tensors[i].name;
  }
}

TEST_F(ConvertDiffMlxTest, OptimizerStateIsDroppedAndReported) {
  const std::vector<float> expected = Logits(served());
  const std::vector<FileTensor> tensors = WithOptimizerState(TensorsOfDiffMlx());
  Write(ConfigOfDiffMlx(), tensors);
  WriteFile(source() / "metrics.jsonl", "{}");
  const ConvertReport report = Converted(source());
  EXPECT_EQ(report.num_tensors, ServedTensors().size());
  EXPECT_EQ(report.dropped.size(), 2 * ServedTensors().size() + 2);
  EXPECT_TRUE(std::ranges::all_of(
      report.dropped, [](const std::string& name) { return name.starts_with("opt."); }));
  EXPECT_THAT(report.left_behind, ElementsAre("metrics.jsonl"));
  EXPECT_TRUE(Logits(result()) == expected);
}

TEST_F(ConvertDiffMlxTest, OtherDTypesAndPackedWeightsHaveTheSameBits) {
  ConvertOptions bfloat16, int8;
  bfloat16.dtype = DType::kBFloat16;
  int8.quantization = WeightFormat::kInt8;
  for (const ConvertOptions& how : {bfloat16, int8}) {
    Converted(served(), how);
    const std::vector<float> expected = Logits(result());
    const std::string config = FileBytes(result() / "config.json");
    ASSERT_FALSE(expected.empty());
    Converted(source(), how);
    EXPECT_TRUE(Logits(result()) == expected);
    EXPECT_EQ(FileBytes(result() / "config.json"), config);
  }
}

TEST_F(ConvertDiffMlxTest, WrittenDTypeEqualsTheStoredOne) {
  std::vector<FileTensor> tensors = TensorsOfDiffMlx();
  for (FileTensor& tensor : tensors) {
    std::string halves;
    for (size_t i = 0; i < tensor.bytes.size(); i += 4) halves += tensor.bytes.substr(i + 2, 2);
    tensor.dtype = "BF16";
    tensor.bytes = halves;
  }
  Write(ConfigOfDiffMlx(), tensors);
  Converted(source());
  EXPECT_THAT(FileBytes(result() / "config.json"), HasSubstr("\"torch_dtype\": \"bfloat16\"\n"));
}

TEST_F(ConvertDiffMlxTest, MissingConfigFieldsHaveTheDefaultsOfDiffMlx) {
  Write(ConfigOfDiffMlx(
            {{"rope_base", ""}, {"rms_eps", ""}, {"tie_embeddings", ""}, {"amp_dtype", "null"}}),
        TensorsOfDiffMlx());
  Converted(source());
  EXPECT_THAT(FileBytes(result() / "config.json"), HasSubstr("\"rope_theta\": 10000,\n"));
}

TEST_F(ConvertDiffMlxTest, GenerationConfigAndTokenizerAreCopied) {
  WriteFile(source() / "generation_config.json", "{\"eos_token_id\": 95}");
  WriteFile(source() / "tokenizer.json", "{}");
  Converted(source());
  const Result<ModelConfig> config = LoadModelConfig(result());
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->eos_token_ids, ElementsAre(95));
  EXPECT_TRUE(fs::exists(result() / "tokenizer.json"));
  fs::remove_all(result());
  WriteFile(source() / "generation_config.json", "{\"eos_token_id\": 96}");
  EXPECT_THAT(Refusal(), HasSubstr("generation_config.json: eos_token_id is 96; allowed:"));
}

TEST_F(ConvertDiffMlxTest, UnservableValueIsRefusedByItsKey) {
  EXPECT_EQ(Refusal("rms_eps", "1e-06"),
            "model.rms_eps is 1e-06; allowed: 1e-05, which the norm of each head has here");
  EXPECT_EQ(Refusal("rms_eps", "\"1e-05\""),
            "model.rms_eps is \"1e-05\"; allowed: a number from "
            "0.0 to 1.0");
  EXPECT_EQ(
      Refusal("tie_embeddings", "false"),
      "model.tie_embeddings is false; allowed: true, because diff-mlx has no output matrix of its "
      "own");
  EXPECT_EQ(Refusal("tie_embeddings", "1"), "model.tie_embeddings is 1; allowed: true or false");
  EXPECT_EQ(Refusal("amp_dtype", "\"float16\""),
            "model.amp_dtype is \"float16\"; allowed: float32 or bfloat16");
  EXPECT_EQ(Refusal("n_heads_vanilla", "3"),
            "model.n_heads_vanilla is 3; allowed: an even number: two make a differential head");
  EXPECT_EQ(Refusal("n_heads_vanilla", "8194"),
            "model.n_heads_vanilla is 8194; allowed: an integer from 2 to 8192");
  EXPECT_EQ(Refusal("n_heads_vanilla", ""), "model.n_heads_vanilla is missing");
  EXPECT_EQ(Refusal("qk_head_dim", "7"), "model.qk_head_dim is 7; allowed: an even number");
  EXPECT_EQ(Refusal("qk_head_dim", "-8"),
            "model.qk_head_dim is -8; allowed: an integer from 2 to 1024");
  EXPECT_EQ(Refusal("qk_head_dim", "16"),
            "model.dim is 32; allowed: n_heads_vanilla * qk_head_dim = 64");
  EXPECT_EQ(Refusal("dim", "32.0"), "model.dim is 32.0; allowed: an integer from 1 to 1048576");
  EXPECT_EQ(Refusal("n_layers", "0"), "model.n_layers is 0; allowed: an integer from 1 to 1024");
  EXPECT_EQ(Refusal("vocab_size", "18446744073709551615"),
            "model.vocab_size is 18446744073709551615; allowed: an integer from 1 to 4194304");
  EXPECT_EQ(Refusal("mlp_intermediate", "[40]"),
            "model.mlp_intermediate is [40]; allowed: an integer from 1 to 1048576");
  EXPECT_EQ(Refusal("block_size", "16777217"),
            "model.block_size is 16777217; allowed: an integer from 1 to 16777216");
  EXPECT_EQ(Refusal("rope_base", "0.5"),
            "model.rope_base is 0.5; allowed: a number from 1.0 to 1000000000000.0");
  EXPECT_EQ(Refusal("n_kv_heads", "2"),
            "model.n_kv_heads is 2; allowed: no key but dim, n_layers, n_heads_vanilla, "
            "qk_head_dim, vocab_size, mlp_intermediate, block_size, rope_base, rms_eps, "
            "tie_embeddings, amp_dtype");
  // A size that differs from the tensors'.
  Write(ConfigOfDiffMlx({{"mlp_intermediate", "41"}}), TensorsOfDiffMlx());
  EXPECT_THAT(Refusal(), HasSubstr("mlp.gate_proj.weight has shape [40, 32]; allowed: [41, 32]"));
  Write(ConfigOfDiffMlx({{"n_layers", "1"}}), TensorsOfDiffMlx());
  EXPECT_THAT(Refusal(),
              HasSubstr("model of config.json with 1 layers for tensor model.blocks.1."));
}

TEST_F(ConvertDiffMlxTest, OtherConfigWithoutAModelTypeIsNotRecognized) {
  for (const char* config : {"{\"model\": \"diff\"}", "{\"model\": null}", "{}"}) {
    Write(config, TensorsOfDiffMlx());
    EXPECT_EQ(Refusal(), (source() / "config.json").string() + ": model_type is missing");
  }
  Write(ConfigOfDiffMlx().insert(1, "\"model_type\": \"gpt2\", "), TensorsOfDiffMlx());
  EXPECT_THAT(Refusal(), HasSubstr("model_type is \"gpt2\"; allowed: diffllama"));
}

TEST_F(ConvertDiffMlxTest, PlainAttentionIsRefusedByName) {
  std::vector<FileTensor> vanilla = TensorsOfDiffMlx();
  std::erase_if(vanilla, [](const FileTensor& tensor) {
    return tensor.name.find("lambda") != std::string::npos ||
           tensor.name.find("subln") != std::string::npos;
  });
  for (const std::vector<FileTensor>& tensors : {vanilla, WithOptimizerState(vanilla)}) {
    Write(ConfigOfDiffMlx(), tensors);
    EXPECT_EQ(Refusal(),
              source().string() +
                  ": holds the vanilla variant of diff-mlx (no tensor lambda_q1): plain attention "
                  "with interleaved rotary embedding cannot be served; allowed: the diff variant");
  }
}

TEST_F(ConvertDiffMlxTest, MissingTensorIsRefusedByName) {
  const auto without = [&](const std::string& name) {
    std::vector<FileTensor> tensors = WithOptimizerState(TensorsOfDiffMlx());
    EXPECT_EQ(std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == name; }), 1u);
    Write(ConfigOfDiffMlx(), tensors);
    return Refusal();
  };
  for (const char* name : {"q1", "k1", "q2", "k2"}) {
    EXPECT_EQ(without(std::string("model.blocks.1.attn.lambda_") + name),
              source().string() +
                  ": what it would become cannot be served: model.safetensors: tensor "
                  "model.layers.1.self_attn.lambda_" +
                  name + " is missing; allowed: shape [8]");
  }
  EXPECT_THAT(without("model.blocks.0.attn.subln.scale"),
              HasSubstr("model.layers.0.self_attn.subln.weight is missing"));
  EXPECT_EQ(without("model.tok_embed.weight"),
            source().string() +
                ": tensor model.tok_embed.weight is missing; allowed: a file with it beside a "
                "config.json of "
                "diff-mlx");
}

}  // namespace
}  // namespace diffserve
