// SPDX-License-Identifier: Apache-2.0
// Model::Load: its errors, dummy weights, and its independence from the files once it has returned.
#include "models/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "models/checkpoint.h"
#include "models/dummy_weights.h"
#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ModelTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Model>> Load(const std::string& dir, bool dummy = false,
                                      uint64_t seed = 0) {
    ModelOptions options;
    options.model_dir = dir;
    options.dummy_weights = dummy;
    options.seed = seed;
    return Model::Load(options, pool_);
  }
  // Checks that Load and InspectModel refuse the directory with the same line, and returns it
  // without the directory's name.
  std::string Refusal(const TinyCheckpoint& checkpoint) {
    const auto model = Load(checkpoint.dir());
    ModelOptions options;
    options.model_dir = checkpoint.dir();
    const auto summary = InspectModel(options);
    if (model.ok()) return "accepted";
    EXPECT_FALSE(summary.ok());
    EXPECT_EQ(summary.status().message(), model.status().message());
    const std::string& line = model.status().message();
    const std::string prefix = checkpoint.dir() + "/";
    return line.starts_with(prefix) ? line.substr(prefix.size()) : line;
  }
  // Logits of the last of a few tokens.
  static std::vector<float> Logits(Model& model) {
    const std::vector<int32_t> pages = {1, 0};
    const KvFormat format = KvFormat::Of(model.config().attention, 16, model.dtype());
    KvCache kv = model.MakeUniformKvCache(format, {2}).value();
    EXPECT_TRUE(model.Forward({{3, 1, 4, 1, 5}, {{0, 5, 0, pages.data()}}, {4}}, kv).ok());
    const std::span<const float> logits = model.Logits(0, 1).value();
    return {logits.begin(), logits.end()};
  }

  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
};

std::vector<FileTensor> Without(std::vector<FileTensor> tensors, const std::string& name) {
  std::erase_if(tensors, [&](const FileTensor& tensor) { return tensor.name == name; });
  return tensors;
}

TEST_F(ModelTest, TensorsThatDoNotFitTheConfigAreRefusedByOneLine) {
  const TinyCheckpoint checkpoint;
  const std::vector<FileTensor> good = TinyTensors({});
  ASSERT_EQ(Refusal(checkpoint), "accepted");
  for (const FileTensor& tensor : good) {
    std::string shape;
    for (int64_t extent : tensor.shape)
      shape += (shape.empty() ? "" : ", ") + std::to_string(extent);
    checkpoint.Write("model.safetensors", SafetensorsBytes(Without(good, tensor.name)));
    EXPECT_EQ(Refusal(checkpoint), "model.safetensors: tensor " + tensor.name +
                                       " is missing; allowed: shape [" + shape + "]");

    std::vector<FileTensor> wrong = Without(good, tensor.name);
    wrong.push_back({tensor.name, "F32", {3, 5}, std::string(60, '\0')});
    checkpoint.Write("model.safetensors", SafetensorsBytes(wrong));
    EXPECT_EQ(Refusal(checkpoint), "model.safetensors: tensor " + tensor.name +
                                       " has shape [3, 5]; allowed: [" + shape +
                                       "] from config.json");

    wrong.back() = {tensor.name, "I32", tensor.shape, tensor.bytes};
    checkpoint.Write("model.safetensors", SafetensorsBytes(wrong));
    EXPECT_EQ(Refusal(checkpoint), "model.safetensors: tensor " + tensor.name +
                                       " has dtype I32; allowed: F32, BF16, F16");
  }
}

TEST_F(ModelTest, BiasesThatTheConfigDoesNotNameAreRefused) {
  const TinyCheckpoint checkpoint;
  std::vector<FileTensor> tensors = TinyTensors({});
  tensors.push_back({"model.layers.0.self_attn.q_proj.bias", "F32", {32}, std::string(128, '\0')});
  checkpoint.Write("model.safetensors", SafetensorsBytes(tensors));
  EXPECT_EQ(Refusal(checkpoint),
            "model.safetensors: tensor model.layers.0.self_attn.q_proj.bias is there, but "
            "config.json says "
            "that there is none (attention_bias, qkv_bias, use_bias, mlp_bias)");
}

TEST_F(ModelTest, DirectoriesThatCannotBeReadAreRefused) {
  EXPECT_EQ(Load("/nonexistent/model").status().message(),
            "/nonexistent/model: is not a directory");
  const TinyCheckpoint checkpoint;
  checkpoint.Remove("generation_config.json");
  EXPECT_EQ(Refusal(checkpoint), "accepted");
  checkpoint.Remove("model.safetensors");
  EXPECT_EQ(
      Refusal(checkpoint),
      checkpoint.dir() + ": holds neither model.safetensors nor model.safetensors.index.json");
  checkpoint.Remove("config.json");
  EXPECT_EQ(Refusal(checkpoint), "config.json: no such file; the directory is empty");
}

TEST_F(ModelTest, WeightsBeyondTheMachinesMemoryAreRefusedBeforeAllocation) {
  TinyCheckpointOptions options;
  options.config_changes = {
      {"hidden_size", "1048576"}, {"num_attention_heads", "1024"}, {"num_hidden_layers", "1024"}};
  const TinyCheckpoint checkpoint(options);
  const auto model = Load(checkpoint.dir(), true);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find("MiB for weights and rope table, this machine has"),
            std::string::npos)
      << model.status().message();
  EXPECT_NE(model.status().message().find("; even in int4 the weights would take "),
            std::string::npos)
      << model.status().message();
}

TEST_F(ModelTest, AdviceNamesTheFormatsInWhichTheWeightsFit) {
  ModelOptions model;
  const TinyCheckpoint checkpoint;
  model.model_dir = checkpoint.dir();
  const double bytes = static_cast<double>(InspectModel(model)->memory_bytes);
  const std::string fitting = FormatAdvice(model, bytes);
  EXPECT_NE(fitting.find("; in int8 the weights would take "), std::string::npos) << fitting;
  EXPECT_NE(fitting.find("; in int4 the weights would take "), std::string::npos) << fitting;
  EXPECT_TRUE(fitting.ends_with(" GiB (--quantization)")) << fitting;
  EXPECT_TRUE(FormatAdvice(model, 0).starts_with("; even in int4 the weights would take "));
  model.linear_format = WeightFormat::kInt4;
  EXPECT_EQ(FormatAdvice(model, bytes), "");
}

TEST_F(ModelTest, FilesMayChangeOnceTheModelIsLoaded) {
  const TinyCheckpoint checkpoint;
  auto model = Load(checkpoint.dir());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<float> before = Logits(**model);
  std::filesystem::resize_file(std::filesystem::path(checkpoint.dir()) / "model.safetensors", 0);
  EXPECT_TRUE(Logits(**model) == before);
}

TEST_F(ModelTest, TiedWeightsMayBeStoredUnderEitherName) {
  const TinyCheckpoint checkpoint;
  const std::vector<float> expected = Logits(**Load(checkpoint.dir()));
  std::vector<FileTensor> tensors = TinyTensors({});
  for (FileTensor& tensor : tensors) {
    if (tensor.name == "model.embed_tokens.weight") tensor.name = "lm_head.weight";
  }
  checkpoint.Write("model.safetensors", SafetensorsBytes(tensors));
  auto model = Load(checkpoint.dir());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_TRUE(Logits(**model) == expected);
}

TEST_F(ModelTest, TiedCheckpointWithBothTablesUsesBoth) {
  TinyCheckpointOptions options;
  options.tie_word_embeddings = false;
  const std::vector<float> untied = Logits(**Load(TinyCheckpoint(options).dir()));
  options.config_changes = {{"tie_word_embeddings", "true"}};
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Logits(**Load(TinyCheckpoint(options).dir())) == untied);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("tied_weights_differ"));
}

TEST_F(ModelTest, SecondTableThatIsTheEmbeddingIsNotReported) {
  const TinyCheckpointOptions options;
  std::vector<FileTensor> tensors = TinyTensors(options);
  FileTensor head = *std::ranges::find(tensors, "model.embed_tokens.weight", &FileTensor::name);
  head.name = "lm_head.weight";
  tensors.push_back(head);
  const TinyCheckpoint checkpoint(options);
  const std::vector<float> tied = Logits(**Load(checkpoint.dir()));
  checkpoint.Write("model.safetensors", SafetensorsBytes(tensors));
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Logits(**Load(checkpoint.dir())) == tied);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(ModelTest, WeightFilesThatAreNotUsedAreListed) {
  const TinyCheckpoint checkpoint;
  ModelOptions options;
  options.model_dir = checkpoint.dir();
  EXPECT_THAT(InspectModel(options)->unused_files, IsEmpty());
  for (const char* name : {"model-00001-of-00002.safetensors", "consolidated.safetensors",
                           "adapter_model.safetensors", "model.safetensors.index.json"})
    checkpoint.Write(name, "of another model");
  EXPECT_THAT(InspectModel(options)->unused_files,
              ElementsAre("adapter_model.safetensors", "consolidated.safetensors",
                          "model-00001-of-00002.safetensors", "model.safetensors.index.json"));
}

TEST_F(ModelTest, ParametersBytesAndLambdasAreReported) {
  TinyCheckpointOptions options;
  options.tie_word_embeddings = false;
  const TinyCheckpoint checkpoint(options);
  auto model = Load(checkpoint.dir());
  ASSERT_TRUE(model.ok()) << model.status().message();
  int64_t parameters = 0;
  for (const FileTensor& tensor : TinyTensors(options))
    parameters += static_cast<int64_t>(tensor.bytes.size() / 4);
  EXPECT_EQ((*model)->num_parameters(), parameters);
  EXPECT_EQ((*model)->weight_bytes(), static_cast<size_t>(4 * (parameters - 128 * 32)));
  ASSERT_EQ((*model)->Lambdas().size(), 2u);
  // exp(a) - exp(b) + lambda_init with small a and b.
  EXPECT_NEAR((*model)->Lambdas()[0], 0.2, 0.5);
  EXPECT_NE((*model)->Lambdas()[0], 0.2f);

  options.family = "llama";
  EXPECT_TRUE((*Load(TinyCheckpoint(options).dir()))->Lambdas().empty());
}

// A value that float16 rounds to its largest is accepted.
TEST_F(ModelTest, WeightBeyondFloat16IsRefusedByTheNameOfItsTensor) {
  const auto load = [&](const std::string& name, float value) {
    TinyCheckpointOptions tiny;
    tiny.tie_word_embeddings = false;
    std::vector<FileTensor> tensors = TinyTensors(tiny);
    const auto tensor = std::ranges::find(tensors, name, &FileTensor::name);
    std::memcpy(tensor->bytes.data() + 5 * sizeof(float), &value, sizeof(float));
    const TinyCheckpoint checkpoint(tiny);
    checkpoint.Write("model.safetensors", SafetensorsBytes(tensors));
    ModelOptions options;
    options.model_dir = checkpoint.dir();
    options.weight_format = WeightFormat::kFloat16;
    const Status status = Model::Load(options, pool_).status();
    const std::string& message = status.message();
    return status.ok() ? "" : message.substr(message.find(": tensor ") + 2);
  };
  for (const char* name :
       {"model.embed_tokens.weight", "lm_head.weight", "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.down_proj.weight"}) {
    EXPECT_EQ(load(name, -70000), "tensor " + std::string(name) +
                                      ": element [0, 5] is -70000.000000; allowed: at most 65504, "
                                      "which float16 holds");
    EXPECT_EQ(load(name, 65519), "");
  }
  EXPECT_EQ(load("model.norm.weight", 70000), "") << "vectors stay float32";
}

TEST_F(ModelTest, DummyWeightsNeedOnlyTheConfigAndFollowTheSeed) {
  TinyCheckpointOptions options;
  options.dtype = DType::kBFloat16;
  options.tie_word_embeddings = false;
  const TinyCheckpoint checkpoint(options);
  checkpoint.Remove("model.safetensors");
  auto model = Load(checkpoint.dir(), true, 5);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->weight_format(), WeightFormat::kBFloat16);
  const std::vector<float> logits = Logits(**model);
  EXPECT_TRUE(std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }));
  EXPECT_TRUE(Logits(**Load(checkpoint.dir(), true, 5)) == logits);
  EXPECT_FALSE(Logits(**Load(checkpoint.dir(), true, 6)) == logits);
}

TEST(DummyWeightsTest, AreTheSameFromOneThreadAndFromMany) {
  ThreadPool pool{{.num_threads = 3, .pin = false, .spin_us = 0}};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const size_t count = 700'001;
    std::vector<std::byte> one(count * SizeOf(dtype)), many(one.size());
    FillDummyTensor("w", 4, dtype, static_cast<int64_t>(count), one.data());
    FillDummyTensor("w", 4, dtype, static_cast<int64_t>(count), many.data(), &pool);
    EXPECT_TRUE(one == many) << NameOf(dtype);
  }
}

TEST(DummyWeightsTest, HaveTheSpreadOfAFreshModel) {
  struct Expected {
    const char* name;
    double mean;
    double deviation;
  };
  const auto checkpoint = Checkpoint::Dummy(DType::kFloat32, 3);
  for (const Expected& expected : {Expected{"model.layers.0.mlp.up_proj.weight", 0, 0.02},
                                   Expected{"model.layers.0.self_attn.lambda_q1", 0, 0.1},
                                   Expected{"model.layers.0.input_layernorm.weight", 1, 0},
                                   Expected{"model.norm.weight", 1, 0}}) {
    const Result<TensorView> view = checkpoint->Get(expected.name, {100'000});
    ASSERT_TRUE(view.ok());
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < 100'000; ++i) {
      const double value = static_cast<double>(view->At(i));
      sum += value;
      squares += value * value;
    }
    const double mean = sum / 100'000;
    EXPECT_NEAR(mean, expected.mean, 0.02 * expected.deviation + 1e-9) << expected.name;
    EXPECT_NEAR(std::sqrt(std::max(0.0, squares / 100'000 - mean * mean)), expected.deviation,
                0.01 * expected.deviation + 1e-6)
        << expected.name;
  }
}

}  // namespace
}  // namespace diffserve
