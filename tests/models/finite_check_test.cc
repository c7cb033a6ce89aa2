// SPDX-License-Identifier: Apache-2.0
#include "models/finite_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/thread_pool.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

using ::testing::EndsWith;

// Every 16-bit number separately.
TEST(FiniteCheckTest, NonFiniteNumbersOf16BitsAreRefused) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (int bits = 0; bits < 1 << 16; ++bits) {
      const auto number = static_cast<uint16_t>(bits);
      const TensorView one{&number, dtype, {1}, "one"};
      FiniteCheck check(dtype, DType::kFloat32);
      check.Add(0, std::as_bytes(std::span(&number, 1)));
      ASSERT_EQ(check.status(one).ok(), std::isfinite(one.At(0))) << bits;
    }
  }
}

TEST(FiniteCheckTest, Float32IsRefusedIfItOrItsRoundedValueIsNotFinite) {
  std::mt19937 random(1);
  for (int i = 0; i < 1 << 20; ++i) {
    // Half of them are near bfloat16's upper limit.
    const uint32_t bits = i % 2 == 0 ? random() : 0x7f7f7f00u + random() % 0x20000u;
    const TensorView one{&bits, DType::kFloat32, {1}, "one"};
    const float value = std::bit_cast<float>(bits);
    for (DType kept_as : {DType::kFloat32, DType::kBFloat16}) {
      FiniteCheck check(DType::kFloat32, kept_as);
      check.Add(0, std::as_bytes(std::span(&bits, 1)));
      const bool expected = std::isfinite(
          kept_as == DType::kFloat32 ? value : BFloat16ToFloat(FloatToBFloat16(value)));
      ASSERT_EQ(check.status(one).ok(), expected) << value;
    }
  }
}

TEST(FiniteCheckTest, FirstIsNamedAndAllAreCountedIndependentlyOfTheCuts) {
  constexpr int kRows = 50, kColumns = 20;
  std::vector<float> values(kRows * kColumns, 1.0f);
  values[7 * kColumns + 3] = std::numeric_limits<float>::quiet_NaN();
  values[7 * kColumns + 4] = -std::numeric_limits<float>::infinity();
  values[49 * kColumns + 19] = std::numeric_limits<float>::infinity();
  const TensorView tensor{values.data(), DType::kFloat32, {kRows, kColumns}, "f: tensor t"};
  const auto bytes = std::as_bytes(std::span(values));
  for (size_t piece : {1, 3, 20, 143, 144, 1000}) {
    FiniteCheck forward(DType::kFloat32, DType::kFloat32), joined = forward;
    for (size_t begin = 0; begin < values.size(); begin += piece) {
      const size_t count = std::min(piece, values.size() - begin);
      forward.Add(static_cast<int64_t>(begin), bytes.subspan(begin * 4, count * 4));
    }
    for (size_t end = values.size(); end > 0; end -= std::min(piece, end)) {
      const size_t begin = end - std::min(piece, end);
      FiniteCheck part(DType::kFloat32, DType::kFloat32);
      part.Add(static_cast<int64_t>(begin), bytes.subspan(begin * 4, (end - begin) * 4));
      joined.Add(part);
    }
    for (const FiniteCheck& check : {forward, joined}) {
      EXPECT_EQ(check.status(tensor).message(),
                "f: tensor t: element [7, 3] is nan; allowed: finite numbers; 3 of 1000 are not");
    }
  }
}

class FiniteWeightsTest : public ::testing::Test {
 protected:
  // The error for a checkpoint with the number at two places of a tensor.
  std::string Refusal(const TinyCheckpointOptions& tiny, const std::string& name, float value,
                      WeightFormat kept_as) {
    std::vector<FileTensor> tensors = TinyTensors(tiny);
    const auto tensor = std::ranges::find(tensors, name, &FileTensor::name);
    for (size_t i : {5, 6})
      std::memcpy(tensor->bytes.data() + i * sizeof(float), &value, sizeof(float));
    const TinyCheckpoint checkpoint(tiny);
    checkpoint.Write("model.safetensors", SafetensorsBytes(tensors));
    ModelOptions options;
    options.model_dir = checkpoint.dir();
    options.weight_format = kept_as;
    return Model::Load(options, pool_).status().message();
  }

  ThreadPool pool_{{.num_threads = 2, .pin = false}};
};

TEST_F(FiniteWeightsTest, NanAndInfinityInAnyTensorAreRefusedAtLoad) {
  TinyCheckpointOptions tiny;
  tiny.tie_word_embeddings = false;
  for (const FileTensor& tensor : TinyTensors(tiny)) {
    for (float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      for (WeightFormat format :
           {WeightFormat::kFloat32, WeightFormat::kBFloat16, WeightFormat::kFloat16}) {
        EXPECT_THAT(Refusal(tiny, tensor.name, value, format),
                    ::testing::ContainsRegex("tensor " + tensor.name + ": element \\[(0, )?5\\] " +
                                             "is (nan|inf); allowed: finite.*; 2 of "));
      }
    }
  }
}

TEST_F(FiniteWeightsTest, ValueThatOverflowsBFloat16IsRefusedForBFloat16Weights) {
  TinyCheckpointOptions tiny;
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(Refusal(tiny, name, 3.4e38f, WeightFormat::kFloat32), "");
  EXPECT_THAT(Refusal(tiny, name, 3.4e38f, WeightFormat::kBFloat16),
              ::testing::HasSubstr("allowed: finite numbers that bfloat16 holds; 2 of"));
}

TEST_F(FiniteWeightsTest, OverflowingLambdaIsRefused) {
  std::vector<FileTensor> tensors = TinyTensors({});
  for (const char* name : {"lambda_q1", "lambda_k1"}) {
    const auto tensor = std::ranges::find(tensors, "model.layers.1.self_attn." + std::string(name),
                                          &FileTensor::name);
    for (size_t i = 0; i < tensor->bytes.size(); i += sizeof(float)) {
      const float value = 20;
      std::memcpy(tensor->bytes.data() + i, &value, sizeof(float));
    }
  }
  const TinyCheckpoint checkpoint;
  checkpoint.Write("model.safetensors", SafetensorsBytes(tensors));
  ModelOptions options;
  options.model_dir = checkpoint.dir();
  EXPECT_THAT(Model::Load(options, pool_).status().message(),
              EndsWith("tensors model.layers.1.self_attn.lambda_{q1, k1, q2, k2}: exp(q1 . k1) - "
                       "exp(q2 . k2) + lambda_init is inf; allowed: a finite number"));
}

// exp(x) exceeds float32 from 88.73 on.
TEST_F(FiniteWeightsTest, OverflowingRateOfAScanIsRefused) {
  const std::string name = "model.layers.2.attn.A_log";
  const TemporaryDirectory directory;
  std::filesystem::copy(GoldenCasesDir() + "/phi4flash_float32_d_state_4", directory.path());
  const std::filesystem::path path = directory.path() / "model.safetensors";
  std::string bytes = FileBytes(path);
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const size_t begin = SafetensorsFile::Open(path).value()->header().at(name).begin;
  ModelOptions options;
  options.model_dir = directory.path();
  for (const auto& [value, end] : {std::pair(88.7f, ""),
                                   {88.8f,
                                    ": tensor model.layers.2.attn.A_log: -exp(A_log) is -inf; "
                                    "allowed: a finite number"}}) {
    std::memcpy(bytes.data() + sizeof(header_size) + header_size + begin + 5 * sizeof(float),
                &value, sizeof(float));
    WriteFile(path, bytes);
    EXPECT_THAT(Model::Load(options, pool_).status().message(), EndsWith(end)) << value;
    EXPECT_EQ(Model::Load(options, pool_).ok(), value < 88.72f) << value;
  }
}

}  // namespace
}  // namespace diffserve
