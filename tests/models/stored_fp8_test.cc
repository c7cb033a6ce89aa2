// SPDX-License-Identifier: Apache-2.0
// Checkpoints with fp8 weights: they are codes times scales, and a mismatch gives a one-line error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/convert/convert.h"
#include "tests/testing/models/fp8_checkpoint.h"
#include "tests/testing/models/short_prompt.h"

namespace diffserve {
namespace {

using ::testing::EndsWith;
using testing::Fp8Scales;
using testing::Fp8Tensors;
using ::testing::HasSubstr;
using testing::kFp8Config;
using testing::ToFp8;

constexpr char kMatrix[] = "model.layers.0.self_attn.q_proj.weight";

// A model directory with these tensors.
class StoredCheckpoint : public TinyCheckpoint {
 public:
  explicit StoredCheckpoint(const std::vector<FileTensor>& tensors,
                            const std::string& quantization = kFp8Config)
      : TinyCheckpoint({.config_changes = {{"quantization_config", quantization}}}) {
    Write("model.safetensors", SafetensorsBytes(tensors));
  }
};

class StoredFp8Test : public ::testing::Test {
 protected:
  static Fp8Tensors Tensors(Fp8Scales scales = Fp8Scales::kPerRow) {
    return ToFp8(TinyTensors({}), scales);
  }
  static FileTensor& Find(std::vector<FileTensor>& tensors, const std::string& name) {
    return *std::ranges::find(tensors, name, &FileTensor::name);
  }
  static ModelOptions OptionsOf(const TinyCheckpoint& checkpoint) {
    ModelOptions options;
    options.model_dir = checkpoint.dir();
    options.isa = SupportedCpuIsas().front();
    return options;
  }
  std::string Refusal(const std::vector<FileTensor>& tensors) {
    const StoredCheckpoint checkpoint(tensors);
    return Model::Load(OptionsOf(checkpoint), pool_).status().message();
  }

  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
};

TEST_F(StoredFp8Test, WeightsAreCodesTimesScales) {
  for (const Fp8Scales scales : {Fp8Scales::kPerTensor, Fp8Scales::kPerRow}) {
    const Fp8Tensors tensors = Tensors(scales);
    const StoredCheckpoint stored(tensors.stored);
    const StoredCheckpoint decoded(tensors.decoded);
    const std::vector<float> expected = ShortPromptLogits(OptionsOf(decoded), pool_);
    ASSERT_FALSE(expected.empty());
    EXPECT_EQ(ShortPromptLogits(OptionsOf(stored), pool_), expected);
    ModelOptions options = OptionsOf(stored), reference = OptionsOf(decoded);
    options.linear_format = reference.linear_format = WeightFormat::kInt8;
    EXPECT_EQ(ShortPromptLogits(options, pool_), ShortPromptLogits(reference, pool_));
  }
}

TEST_F(StoredFp8Test, ScalesCountAsUsed) {
  const StoredCheckpoint stored(Tensors().stored);
  EXPECT_TRUE(InspectModel(OptionsOf(stored)).value().unused_tensors.empty());
}

TEST_F(StoredFp8Test, WrongScalesAndCodesAreRefusedByName) {
  const std::vector<FileTensor> good = Tensors().stored;
  const std::string scale = std::string(kMatrix) + "_scale";
  std::vector<FileTensor> tensors = good;
  tensors.erase(std::ranges::find(tensors, scale, &FileTensor::name));
  EXPECT_THAT(Refusal(tensors),
              EndsWith(std::string(kMatrix) + " has dtype F8_E4M3, and " + scale + " is missing"));
  tensors = good;
  Find(tensors, scale) = {scale, "F32", {2}, std::string(8, '\0')};
  EXPECT_THAT(Refusal(tensors),
              EndsWith(scale + " has dtype F32 and shape [2]; allowed: a float type and 1 or 32 "
                               "elements"));
  tensors = good;
  const float negative = -1;
  std::memcpy(Find(tensors, scale).bytes.data(), &negative, sizeof(negative));
  EXPECT_THAT(Refusal(tensors), EndsWith(scale + ": element [0] is -1.000000; allowed: 0 or more"));
  tensors = good;
  Find(tensors, kMatrix).bytes[5] = '\x7f';
  EXPECT_THAT(Refusal(tensors), HasSubstr(std::string(kMatrix) + ": element [0, 5] is nan"));
}

TEST_F(StoredFp8Test, CodesWithoutTheConfigAreNoFloats) {
  TinyCheckpoint checkpoint;
  checkpoint.Write("model.safetensors", SafetensorsBytes(Tensors().stored));
  EXPECT_THAT(InspectModel(OptionsOf(checkpoint)).status().message(),
              HasSubstr(" has dtype F8_E4M3; allowed: F32, BF16, F16"));
}

TEST_F(StoredFp8Test, OtherKindsOfTheMethodsAreRefused) {
  const std::pair<const char*, const char*> refusals[] = {
      {R"({"quant_method": "fp8", "weight_block_size": [128, 128]})",
       "quantization_config.weight_block_size is [128,128]; allowed: none: a scale per tensor or "
       "per output feature"},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
       "quantization_config.format is \"pack-quantized\"; allowed: float-quantized"},
      {R"({"quant_method": "gptq"})",
       "quantization_config is set: quantised weights cannot be served"}};
  for (const auto& [config, message] : refusals) {
    const StoredCheckpoint checkpoint(Tensors().stored, config);
    EXPECT_THAT(InspectModel(OptionsOf(checkpoint)).status().message(), EndsWith(message));
  }
  const StoredCheckpoint served(
      Tensors().stored, R"({"quant_method": "compressed-tensors", "format": "float-quantized"})");
  EXPECT_TRUE(InspectModel(OptionsOf(served)).ok());
}

TEST_F(StoredFp8Test, ConvertWantsTheOriginal) {
  const StoredCheckpoint checkpoint(Tensors().stored);
  const TemporaryDirectory directory;
  ConvertOptions options;
  options.source_dir = checkpoint.dir();
  options.output_dir = directory.path() / "new";
  EXPECT_THAT(ConvertCheckpoint(options, pool_).status().message(),
              EndsWith("quantization_config: is fp8; allowed: the original"));
}

}  // namespace
}  // namespace diffserve
