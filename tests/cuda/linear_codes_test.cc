// SPDX-License-Identifier: Apache-2.0
// Products by int8 and int4 codes on the way to wgmma: whole and half tiles, several of them per
// thread block, at every edge of a tile, and parts of in_features. And the order of the codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/ops/linear_quantized_cuda.h"
#include "kernels/ops/weight_packer_cuda.h"
#include "kernels/ops/weight_tiles.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/kept_weights.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve {
namespace {

using testing::AllClose;
using testing::DeviceArray;
using testing::IsOk;
using testing::KernelOp;
using testing::RandomFloats;
using testing::Rounded;
using testing::SameBits;
using testing::StoredTensor;
using testing::ToBFloat16;
using testing::ToFloat;
using testing::ToleranceOf;

size_t Elements(int rows, int columns) {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns);
}

class LinearCodesTilesCudaTest : public testing::OnDeviceTest,
                                 public ::testing::WithParamInterface<WeightFormat> {
 protected:
  void SetUp() override {
    OnDeviceTest::SetUp();
    if (IsSkipped()) return;
    if (!cuda::MultiplyCodes({.weight = {.format = GetParam()}}, *stream_).value())
      GTEST_SKIP() << device_.name << " has no wgmma";
  }

  // A matrix and what the format keeps of it; int4 weights are rounded to bfloat16.
  struct Matrix {
    int out_features;
    int in_features;
    cuda::PackedLinear packed;
    std::vector<float> kept;
  };
  Matrix Pack(int out_features, int in_features, const std::vector<float>& values) {
    Matrix matrix = {out_features, in_features, {}, {}};
    const StoredTensor stored(values, {out_features, in_features});
    const LinearPart part = {.weight = stored.view(), .row_order = {}, .bias = {}};
    cuda::WeightPacker packer(*stream_, GetParam(), kBaseCpuIsa, pool_);
    matrix.packed = packer.Linear({&part, 1}, LinearOutput::kFloat32);
    EXPECT_TRUE(IsOk(packer.status()));
    EXPECT_TRUE(IsOk(stream_->Synchronize()));
    for (int row = 0; row < out_features; ++row) {
      std::vector<float> kept = testing::KeptWeights(
          GetParam(),
          std::span(values).subspan(Elements(row, in_features), static_cast<size_t>(in_features)));
      if (GetParam() == WeightFormat::kInt4) kept = Rounded(kept, DType::kBFloat16);
      matrix.kept.insert(matrix.kept.end(), kept.begin(), kept.end());
    }
    return matrix;
  }
  Matrix RandomMatrix(int out_features, int in_features) {
    return Pack(out_features, in_features, RandomFloats(Elements(out_features, in_features), 3));
  }

  // y of tokens [begin, end) of x, whose rows are `x_stride` apart, with memory for part_sums_.
  // Memory after y stays as it was.
  template <typename Y>
  std::vector<Y> Multiply(const Matrix& matrix, const std::vector<BFloat16>& x, int x_stride,
                          std::pair<int, int> tokens, const std::vector<Y>& bias = {},
                          const std::vector<Y>& residual = {}) {
    const int num_tokens = tokens.second - tokens.first;
    const size_t count = Elements(num_tokens, matrix.out_features);
    std::vector<Y> before = residual;
    before.resize(count);
    before.resize(count + 64, Y{7});
    const DeviceArray<BFloat16> device_x(x, *stream_);
    const DeviceArray<Y> device_y(before, *stream_), device_bias(bias, *stream_);
    const DeviceArray<float> sums(std::vector<float>(part_sums_, kUnused), *stream_);
    const Result<bool> is_done = cuda::MultiplyCodes(
        {.weight = matrix.packed.matrix(),
         .x = device_x.data() + Elements(tokens.first, x_stride),
         .x_stride = x_stride,
         .num_tokens = num_tokens,
         .y = device_y.data(),
         .y_dtype = sizeof(Y) == 4 ? DType::kFloat32 : DType::kBFloat16,
         .bias = device_bias.data(),
         .accumulate = !residual.empty()},
        *stream_, {sums.data(), part_sums_});
    EXPECT_TRUE(IsOk(is_done.status()));
    const std::vector<float> after = sums.Read(*stream_);
    part_sums_used_ = part_sums_ - static_cast<size_t>(std::ranges::count(after, kUnused));
    std::vector<Y> y = device_y.Read(*stream_);
    EXPECT_EQ(std::count(y.begin() + static_cast<std::ptrdiff_t>(count), y.end(), Y{7}), 64);
    y.resize(count);
    return y;
  }

  static std::vector<float> Reference(const Matrix& matrix, const std::vector<float>& x,
                                      int num_tokens, const std::vector<float>& bias = {},
                                      const std::vector<float>& residual = {}) {
    std::vector<float> y;
    const auto in = static_cast<size_t>(matrix.in_features);
    for (size_t token = 0; token < static_cast<size_t>(num_tokens); ++token) {
      for (size_t row = 0; row < static_cast<size_t>(matrix.out_features); ++row) {
        double sum = bias.empty() ? 0 : bias[row];
        for (size_t i = 0; i < in; ++i)
          sum += double{matrix.kept[row * in + i]} * x[token * in + i];
        y.push_back(static_cast<float>(sum + (residual.empty() ? 0 : residual[y.size()])));
      }
    }
    return y;
  }

  static constexpr float kUnused = -1234;
  size_t part_sums_ = 0;
  size_t part_sums_used_ = 0;  // by the last product
  ThreadPool pool_{{.num_threads = 2, .pin = false}};
};

std::vector<float> RandomTokens(int num_tokens, int in_features) {
  return Rounded(RandomFloats(Elements(num_tokens, in_features), 4), DType::kBFloat16);
}

struct Size {
  int out_features;
  int in_features;
  int num_tokens;
};

TEST_P(LinearCodesTilesCudaTest, EveryEdgeOfATileMatchesTheReference) {
  for (const auto& [out_features, in_features, num_tokens] :
       {Size{128, 64, 128}, Size{129, 72, 127}, Size{256, 64, 129}, Size{257, 136, 130},
        Size{520, 200, 257}, Size{384, 8, 300}, Size{8, 456, 513}, Size{1100, 64, 140},
        Size{264, 64, 2100}}) {
    const Matrix matrix = RandomMatrix(out_features, in_features);
    const std::vector<float> x = RandomTokens(num_tokens, in_features);
    ASSERT_TRUE(AllClose(Multiply<float>(matrix, ToBFloat16(x), in_features, {0, num_tokens}),
                         Reference(matrix, x, num_tokens),
                         ToleranceOf(KernelOp::kLinear, DType::kFloat32)))
        << num_tokens << " x " << in_features << " x " << out_features;
  }
}

TEST_P(LinearCodesTilesCudaTest, BiasAndResidualAreAddedToEveryTypeOfResult) {
  for (const int out_features : {136, 137}) {
    constexpr int kIn = 72, kTokens = 150;
    const Matrix matrix = RandomMatrix(out_features, kIn);
    const std::vector<float> x = RandomTokens(kTokens, kIn);
    const std::vector<float> bias = Rounded(RandomFloats(static_cast<size_t>(out_features), 7),
                                            DType::kBFloat16);
    const std::vector<float> residual = Rounded(RandomFloats(Elements(kTokens, out_features), 9),
                                                DType::kBFloat16);
    const auto multiply = [&]<typename Y>(const std::vector<Y>& added, const std::vector<Y>& to) {
      return Multiply<Y>(matrix, ToBFloat16(x), kIn, {0, kTokens}, added, to);
    };
    const std::vector<float> nothing;
    for (const auto& [added, to] :
         {std::pair{bias, residual}, std::pair{bias, nothing}, std::pair{nothing, residual}}) {
      const std::vector<float> expected = Reference(matrix, x, kTokens, added, to);
      EXPECT_TRUE(
          AllClose(multiply(added, to), expected, ToleranceOf(KernelOp::kLinear, DType::kFloat32)));
      EXPECT_TRUE(AllClose(ToFloat(multiply(ToBFloat16(added), ToBFloat16(to))), expected,
                           ToleranceOf(KernelOp::kLinear, DType::kBFloat16)));
    }
  }
}

// Wherever the token lies in a tile, and whether its tile is whole or halved.
TEST_P(LinearCodesTilesCudaTest, BitsOfATokenDependOnNothingElse) {
  constexpr int kOut = 600, kIn = 136, kTokens = 300;
  const Matrix matrix = RandomMatrix(kOut, kIn);
  const std::vector<BFloat16> x = ToBFloat16(RandomTokens(kTokens, kIn));
  const std::vector<float> all = Multiply<float>(matrix, x, kIn, {0, kTokens});
  for (const auto& [begin, end] :
       {std::pair{0, 1}, {5, 6}, {77, 78}, {0, 128}, {1, 129}, {130, 300}, {299, 300}, {3, 260}}) {
    for (const int multiprocessors : {1, 2, 3, 132}) {
      SimulateMultiprocessors(multiprocessors);
      EXPECT_TRUE(
          SameBits(Multiply<float>(matrix, x, kIn, {begin, end}),
                   std::span(all).subspan(Elements(begin, kOut), Elements(end - begin, kOut))))
          << begin << " to " << end << " on " << multiprocessors;
    }
  }
}

TEST_P(LinearCodesTilesCudaTest, RowsMayLieApartOnEverySchedule) {
  constexpr int kOut = 392, kIn = 584, kTokens = 133, kStride = 600;
  const Matrix matrix = RandomMatrix(kOut, kIn);
  const std::vector<float> x = RandomTokens(kTokens, kIn);
  std::vector<float> apart;
  for (size_t token = 0; token < kTokens; ++token) {
    apart.insert(apart.end(), x.begin() + static_cast<std::ptrdiff_t>(token * kIn),
                 x.begin() + static_cast<std::ptrdiff_t>((token + 1) * kIn));
    apart.resize((token + 1) * kStride, std::numeric_limits<float>::quiet_NaN());
  }
  const std::vector<float> expected = Multiply<float>(matrix, ToBFloat16(x), kIn, {0, kTokens});
  ASSERT_TRUE(AllClose(expected, Reference(matrix, x, kTokens),
                       ToleranceOf(KernelOp::kLinear, DType::kFloat32)));
  OnEverySchedule([&] {
    EXPECT_TRUE(
        SameBits(Multiply<float>(matrix, ToBFloat16(apart), kStride, {0, kTokens}), expected));
  });
}

TEST_P(LinearCodesTilesCudaTest, PartsOfInFeaturesAddUpToTheReference) {
  struct Case {
    Size size;
    size_t parts;
  };
  SimulateMultiprocessors(132);
  for (const auto& [size, parts] :
       {Case{{128, 1016, 5}, 2}, Case{{264, 1160, 130}, 2}, Case{{8, 2056, 128}, 4},
        Case{{137, 1608, 129}, 3}, Case{{256, 960, 64}, 1}}) {
    SCOPED_TRACE(size.in_features);
    const Matrix matrix = RandomMatrix(size.out_features, size.in_features);
    const std::vector<float> x = RandomTokens(size.num_tokens, size.in_features);
    const size_t elements = Elements(size.num_tokens, size.out_features);
    const std::vector<float> bias = Rounded(RandomFloats(static_cast<size_t>(size.out_features), 7),
                                            DType::kBFloat16);
    const std::vector<float> residual = Rounded(RandomFloats(elements, 9), DType::kBFloat16);
    const std::vector<float> expected = Reference(matrix, x, size.num_tokens, bias, residual);
    const auto multiply = [&]<typename Y>(const std::vector<Y>& added, const std::vector<Y>& to) {
      return Multiply<Y>(matrix, ToBFloat16(x), size.in_features, {0, size.num_tokens}, added, to);
    };
    part_sums_ = 9 * elements;
    std::vector<float> first;
    OnEverySchedule([&] {
      const std::vector<float> y = multiply(bias, residual);
      EXPECT_EQ(part_sums_used_, parts > 1 ? parts * elements : 0);
      if (first.empty()) first = y;
      EXPECT_TRUE(SameBits(y, first));
    });
    EXPECT_TRUE(AllClose(first, expected, ToleranceOf(KernelOp::kLinear, DType::kFloat32)));
    EXPECT_TRUE(AllClose(ToFloat(multiply(ToBFloat16(bias), ToBFloat16(residual))), expected,
                         ToleranceOf(KernelOp::kLinear, DType::kBFloat16)));
  }
}

TEST_P(LinearCodesTilesCudaTest, PartsAreNoMoreThanThereIsMemoryOrWorkFor) {
  constexpr int kOut = 72, kIn = 2056, kTokens = 9;
  constexpr size_t kElements = size_t{kOut} * kTokens;
  SimulateMultiprocessors(132);
  const Matrix matrix = RandomMatrix(kOut, kIn);
  const std::vector<BFloat16> x = ToBFloat16(RandomTokens(kTokens, kIn));
  const auto multiply = [&] { return Multiply<float>(matrix, x, kIn, {0, kTokens}); };
  const std::vector<float> whole = multiply();
  part_sums_ = 4 * kElements - 1;
  multiply();
  EXPECT_EQ(part_sums_used_, 3 * kElements);
  part_sums_ = 2 * kElements - 1;
  EXPECT_TRUE(SameBits(multiply(), whole));
  EXPECT_EQ(part_sums_used_, 0u);
  if (testing::kHasGpu) return;
  part_sums_ = 4 * kElements;
  SimulateMultiprocessors(4);
  multiply();
  EXPECT_EQ(part_sums_used_, 2 * kElements);
  SimulateMultiprocessors(3);
  EXPECT_TRUE(SameBits(multiply(), whole));
  EXPECT_EQ(part_sums_used_, 0u);
}

// A token for each input feature: y is the weights. All codes, one after another in a row.
TEST_P(LinearCodesTilesCudaTest, EveryCodeOfEveryFeatureIsExact) {
  constexpr int kOut = 264, kIn = 256;
  std::vector<float> w(Elements(kOut, kIn));
  for (size_t i = 0; i < w.size(); ++i) {
    const auto code = static_cast<int>((i + i / kIn) % 256);
    w[i] = GetParam() == WeightFormat::kInt8 ? static_cast<float>(std::max(code - 128, -127))
                                             : static_cast<float>(code % 16 - 8);
  }
  std::vector<float> x(Elements(kIn, kIn));
  for (size_t i = 0; i < kIn; ++i) x[i * (kIn + 1)] = 1;
  const std::vector<float> y = Multiply<float>(Pack(kOut, kIn, w), ToBFloat16(x), kIn, {0, kIn});
  for (size_t i = 0; i < w.size(); ++i) ASSERT_EQ(y[i % kIn * kOut + i / kIn], w[i]) << i;
}

TEST_P(LinearCodesTilesCudaTest, OtherDevicesAreLeftToTheLibrary) {
  if (testing::kHasGpu) GTEST_SKIP() << "needs a GPU: not this one";
  const Matrix matrix = RandomMatrix(8, 8);
  const auto is_done = [&] {
    return cuda::MultiplyCodes({.weight = matrix.packed.matrix()}, *stream_).value();
  };
  EXPECT_TRUE(is_done());
  SimulateComputeCapability(10);
  EXPECT_FALSE(is_done());
  SimulateComputeCapability(8);
  EXPECT_FALSE(is_done());
  SimulateComputeCapability(9);
  SimulateSharedBytes(100 << 10);
  EXPECT_FALSE(is_done());
}

TEST(WeightTilesTest, EveryCodeHasAPlaceOfItsOwn) {
  std::vector<int> uses(Int8Tile::kBytes);
  std::vector<int> nibbles(2 * Int4Tile::kScalesAt);
  for (int row = 0; row < kTileRows; ++row) {
    for (int i = 0; i < kQuantGroup; ++i) {
      ++uses.at(static_cast<size_t>(Int8Tile::CodeAt(row, i)));
      ++nibbles.at(static_cast<size_t>(2 * Int4Tile::CodeAt(row, i) + Int4Tile::CodeShift(i) / 4));
    }
  }
  EXPECT_EQ(std::ranges::count(uses, 1), std::ssize(uses));
  EXPECT_EQ(std::ranges::count(nibbles, 1), std::ssize(nibbles));
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearCodesTilesCudaTest,
                         ::testing::Values(WeightFormat::kInt8, WeightFormat::kInt4),
                         [](const ::testing::TestParamInfo<WeightFormat>& format) {
                           return std::string(NameOf(format.param));
                         });

}  // namespace
}  // namespace diffserve
