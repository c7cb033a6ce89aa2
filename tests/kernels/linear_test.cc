// SPDX-License-Identifier: Apache-2.0
// Linear layers on every backend and in every weight format: against the double-precision
// reference, exact on integers, and bitwise equal for every number of tokens.
#include "kernels/ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/ops/weight_codec.h"
#include "tests/testing/kernels/op_backends.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve {
namespace {

using testing::AllClose;
using testing::KernelOp;
using testing::LinearBackend;
using testing::LinearTestInput;
using testing::PackedRun;
using testing::RandomFloats;
using testing::Rounded;
using testing::SameBits;
using testing::StoredTensor;
using testing::ToleranceOf;

class LinearTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backends_.empty()) GTEST_SKIP() << "there is no device";
  }

  static int RoundUp(int features, int unit) { return (features + unit - 1) / unit * unit; }

  static std::vector<float> Reference(const std::vector<LinearPart>& parts, LinearTestInput input) {
    int64_t out_features = 0;
    for (const LinearPart& part : parts) out_features += part.out_features();
    input.y.resize(static_cast<size_t>(input.num_tokens * out_features));
    LinearRef(parts, {.x = input.x.data(),
                      .num_tokens = input.num_tokens,
                      .y = input.y.data(),
                      .accumulate = input.accumulate,
                      .x_stride = input.x_stride});
    return input.y;
  }

  const std::vector<LinearBackend> backends_ = testing::LinearBackends();
};

LinearPart Part(const StoredTensor& weight) {
  return {.weight = weight.view(), .row_order = {}, .bias = {}};
}

std::vector<float> RandomOf(DType dtype, int rows, int columns, uint32_t seed) {
  return Rounded(RandomFloats(static_cast<size_t>(rows * columns), seed), dtype);
}

TEST_F(LinearTest, OddShapesMatchTheReference) {
  const std::pair<int, int> shapes[] = {{1, 1},    {1, 7},    {5, 2},    {16, 16},  {17, 33},
                                        {31, 255}, {64, 256}, {70, 257}, {97, 300}, {530, 13}};
  for (const LinearBackend& backend : backends_) {
    for (const auto& [out, in] : shapes) {
      const int out_features = RoundUp(out, backend.unit), in_features = RoundUp(in, backend.unit);
      const StoredTensor weight(RandomFloats(static_cast<size_t>(out_features * in_features), 3),
                                {out_features, in_features}, DTypeOf(backend.format));
      const PackedRun run = backend.pack({Part(weight)}, LinearOutput::kFloat32);
      for (int num_tokens : {0, 1, 2, 3, 5, 6, 7, 13, 25, 40}) {
        const LinearTestInput input = {RandomOf(backend.inputs, num_tokens, in_features, 4),
                                       num_tokens};
        ASSERT_TRUE(AllClose(run(input), Reference({Part(weight)}, input),
                             ToleranceOf(KernelOp::kLinear, DType::kFloat32)))
            << num_tokens << " x " << in_features << " x " << out_features << ", " << backend.name;
      }
    }
  }
}

// Every format holds the weights exactly.
TEST_F(LinearTest, StackedPartsKeepTheirOrderBiasAndResidual) {
  constexpr int kIn = 40;
  const StoredTensor first(RandomOf(DType::kBFloat16, 20, kIn, 5), {20, kIn}, DType::kFloat16);
  const StoredTensor second(RandomOf(DType::kBFloat16, 9, kIn, 6), {9, kIn}, DType::kBFloat16);
  const StoredTensor bias(RandomOf(DType::kBFloat16, 9, 1, 7), {9});
  std::vector<int32_t> order(20);
  for (int i = 0; i < 20; ++i) order[static_cast<size_t>(i)] = (i * 7) % 20;
  const std::vector<LinearPart> parts = {
      {.weight = first.view(), .row_order = order, .bias = {}},
      {.weight = second.view(), .row_order = {8, 0, 3, 1}, .bias = bias.view()}};
  for (const LinearBackend& backend : backends_) {
    for (LinearOutput output : {LinearOutput::kFloat32, LinearOutput::kActivation}) {
      const bool is_float = output == LinearOutput::kFloat32;
      const DType y_dtype = is_float ? DType::kFloat32 : backend.activations;
      const PackedRun run = backend.pack(parts, output);
      for (int num_tokens : {1, 4, 30}) {
        for (bool accumulate : {false, true}) {
          const LinearTestInput input = {RandomOf(backend.inputs, num_tokens, kIn, 8), num_tokens,
                                         RandomOf(y_dtype, num_tokens, 24, 9), accumulate};
          EXPECT_TRUE(AllClose(run(input), Reference(parts, input),
                               ToleranceOf(KernelOp::kLinear, y_dtype)))
              << num_tokens << " " << backend.name;
        }
      }
    }
  }
}

TEST_F(LinearTest, WiderSourcesAreRoundedToNearestEven) {
  for (const LinearBackend& backend : backends_) {
    if (backend.format == WeightFormat::kFloat32) continue;
    const float unit = backend.format == WeightFormat::kFloat16 ? 0x1p-10f : 0x1p-7f;
    std::vector<float> values(64, 0.0f);  // the first column of [8, 8]
    values[0] = 1 + unit / 2;             // rounds to the even 1
    values[8] = 1 + unit + unit / 2;      // rounds to the even 1 + 2 unit
    values[16] = -values[8];
    const StoredTensor weight(values, {8, 8});
    const PackedRun run = backend.pack({Part(weight)}, LinearOutput::kFloat32);
    EXPECT_EQ(run({{1, 0, 0, 0, 0, 0, 0, 0}, 1}),
              (std::vector<float>{1, 1 + 2 * unit, -1 - 2 * unit, 0, 0, 0, 0, 0}))
        << backend.name;
  }
}

TEST_F(LinearTest, SmallIntegersAreExact) {
  constexpr int kIn = 600, kOut = 56;
  std::vector<float> values(static_cast<size_t>(kIn) * kOut);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int>(i * 31 % 17) - 8);
  const StoredTensor weight(values, {kOut, kIn});
  for (const LinearBackend& backend : backends_) {
    const PackedRun run = backend.pack({Part(weight)}, LinearOutput::kFloat32);
    for (int num_tokens : {1, 6, 20, 200}) {
      LinearTestInput input = {std::vector<float>(static_cast<size_t>(num_tokens) * kIn),
                               num_tokens};
      for (size_t i = 0; i < input.x.size(); ++i)
        input.x[i] = static_cast<float>(static_cast<int>(i * 13 % 11) - 5);
      EXPECT_EQ(run(input), Reference({Part(weight)}, input)) << backend.name;
    }
  }
}

// A single token is too little work to wake other threads.
TEST_F(LinearTest, TokenIsBitwiseIndependentOfBatch) {
  constexpr int kTokens = 201;  // more than two blocks of 96 rows
  struct Shape {
    int out_features;
    int in_features;
    std::vector<int> num_tokens;
  };
  // The second shape exceeds L2 at 190 tokens; then it has two blocks of columns and three of
  // depth.
  const Shape shapes[] = {{83, 70, {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 31, 40, 97, 201}},
                          {555, 519, {2, 7, 25, 190, 201}}};
  for (const LinearBackend& backend : backends_) {
    if (!backend.is_batch_invariant) continue;
    for (const auto& [out, in, counts] : shapes) {
      const int out_features = RoundUp(out, backend.unit), in_features = RoundUp(in, backend.unit);
      const StoredTensor weight(RandomFloats(static_cast<size_t>(out_features * in_features), 11),
                                {out_features, in_features});
      const StoredTensor bias(RandomFloats(static_cast<size_t>(out_features), 12), {out_features});
      LinearPart part = Part(weight);
      part.bias = bias.view();
      const PackedRun run = backend.pack({part}, LinearOutput::kFloat32);
      const std::vector<float> x = RandomOf(backend.inputs, kTokens, in_features, 13);
      std::vector<float> alone;
      for (int token = 0; token < kTokens; ++token) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(token) * in_features;
        const std::vector<float> y = run({{begin, begin + in_features}, 1});
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (int num_tokens : counts) {
        const std::vector<float> y = run(
            {{x.begin(), x.begin() + static_cast<std::ptrdiff_t>(num_tokens) * in_features},
             num_tokens});
        ASSERT_TRUE(SameBits(y, std::span(alone).first(y.size())))
            << num_tokens << " tokens, " << backend.name;
      }
    }
  }
}

TEST_F(LinearTest, RowsMayBeFartherApartThanTheirWidth) {
  constexpr int kIn = 24, kOut = 40, kStride = 72;
  const StoredTensor weight(RandomFloats(kIn * kOut, 16), {kOut, kIn});
  for (const LinearBackend& backend : backends_) {
    const PackedRun run = backend.pack({Part(weight)}, LinearOutput::kFloat32);
    for (int num_tokens : {1, 3, 30}) {
      const std::vector<float> apart = RandomOf(backend.inputs, num_tokens, kStride, 17);
      std::vector<float> dense;
      for (int token = 0; token < num_tokens; ++token) {
        const auto row = apart.begin() + token * kStride;
        dense.insert(dense.end(), row, row + kIn);
      }
      EXPECT_TRUE(SameBits(run({.x = apart, .num_tokens = num_tokens, .x_stride = kStride}),
                           run({.x = dense, .num_tokens = num_tokens})))
          << num_tokens << " tokens, " << backend.name;
    }
  }
}

TEST_F(LinearTest, NanStaysWithItsToken) {
  constexpr int kIn = 24, kOut = 40;
  const StoredTensor weight(RandomFloats(kIn * kOut, 14), {kOut, kIn});
  for (const LinearBackend& backend : backends_) {
    const PackedRun run = backend.pack({Part(weight)}, LinearOutput::kFloat32);
    for (int num_tokens : {3, 30}) {
      LinearTestInput input = {RandomOf(backend.inputs, num_tokens, kIn, 15), num_tokens};
      const std::vector<float> clean = run(input);
      input.x[kIn + 5] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> y = run(input);
      for (size_t i = 0; i < y.size(); ++i) {
        if (i / kOut == 1) {
          ASSERT_TRUE(std::isnan(y[i])) << backend.name;
        } else {
          ASSERT_EQ(y[i], clean[i]) << backend.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace diffserve
