// SPDX-License-Identifier: Apache-2.0
// Products with quantised weights on a device: against the double-precision product of the weights
// that the format keeps, with the same bits for every number of tokens, and by way of bfloat16
// weights. With fp8 weights the activations are quantised too.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/ops/matrix_library.h"
#include "kernels/ops/weight_packer_cuda.h"
#include "kernels/ops/weight_tiles.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/kept_weights.h"
#include "tests/testing/stored_values.h"

namespace diffserve {
namespace {

using testing::AllClose;
using testing::DeviceArray;
using testing::KeptWeights;
using testing::KernelOp;
using testing::RandomFloats;
using testing::Rounded;
using testing::SameBits;
using testing::StoredTensor;
using testing::ToBFloat16;
using testing::ToFloat;
using testing::ToleranceOf;

struct Shape {
  int out_features;
  int in_features;
};

size_t Elements(int rows, int columns) {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns);
}

class LinearQuantizedCudaTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  void SetUp() override {
    if (!testing::KernelsCanRun()) GTEST_SKIP() << "there is no device";
    if (!testing::DeviceMultiplies(GetParam()))
      GTEST_SKIP() << cuda::OpenDevice(0)->name << " multiplies no fp8 numbers";
    stream_.emplace(cuda::Stream::Create().value());
    library_ =
        cuda::MatrixLibrary::Open({.batch_invariant = true, .scratch_bytes = 1 << 20}).value();
  }

  cuda::PackedLinear Pack(const std::vector<LinearPart>& parts, LinearOutput output) {
    cuda::WeightPacker packer(*stream_, GetParam(), CpuIsa::kAvx2, pool_);
    cuda::PackedLinear weight = packer.Linear(parts, output);
    EXPECT_TRUE(packer.status().ok()) << packer.status().message();
    EXPECT_TRUE(stream_->Synchronize().ok());
    return weight;
  }
  template <typename Y>
  std::vector<Y> Run(const cuda::PackedLinear& weight, const std::vector<float>& x,
                     std::vector<Y> y = {}) {
    const int num_tokens = static_cast<int>(x.size()) / weight.in_features();
    const bool accumulate = !y.empty();
    y.resize(Elements(num_tokens, weight.out_features()));
    const DeviceArray<BFloat16> device_x(ToBFloat16(x), *stream_);
    const DeviceArray<Y> device_y(y, *stream_);
    const Status status = cuda::Linear(weight,
                                       LinearArgs<BFloat16, Y>{.x = device_x.data(),
                                                               .num_tokens = num_tokens,
                                                               .y = device_y.data(),
                                                               .accumulate = accumulate},
                                       *library_, *stream_);
    EXPECT_TRUE(status.ok()) << status.message();
    return device_y.Read(*stream_);
  }

  static KernelOp Op() {
    return GetParam() == WeightFormat::kFp8E4M3 ? KernelOp::kFp8Linear : KernelOp::kLinear;
  }

  // x times the weights that the format keeps, plus bias and y.
  std::vector<float> Reference(std::span<const float> w, Shape shape, std::span<const float> x,
                               std::span<const float> bias = {},
                               std::span<const float> y = {}) const {
    const auto out = static_cast<size_t>(shape.out_features),
               in = static_cast<size_t>(shape.in_features);
    std::vector<float> sums(x.size() / in * out);
    for (size_t feature = 0; feature < out; ++feature) {
      const std::vector<float> weights = KeptWeights(GetParam(), w.subspan(feature * in, in));
      for (size_t token = 0; token < x.size() / in; ++token) {
        std::vector<float> row(x.begin() + static_cast<std::ptrdiff_t>(token * in),
                               x.begin() + static_cast<std::ptrdiff_t>((token + 1) * in));
        if (GetParam() == WeightFormat::kFp8E4M3) row = KeptWeights(GetParam(), row);
        double sum = bias.empty() ? 0 : bias[feature];
        for (size_t i = 0; i < in; ++i) sum += double{weights[i]} * row[i];
        sums[token * out + feature] = static_cast<float>(
            sum + (y.empty() ? 0 : y[token * out + feature]));
      }
    }
    return sums;
  }

  ThreadPool pool_{{.num_threads = 2, .pin = false}};
  std::optional<cuda::Stream> stream_;
  std::unique_ptr<cuda::MatrixLibrary> library_;
};

class LinearIntCudaTest : public LinearQuantizedCudaTest {};
class LinearFp8CudaTest : public LinearQuantizedCudaTest {};

std::vector<float> RandomTokens(int num_tokens, int in_features) {
  return Rounded(RandomFloats(Elements(num_tokens, in_features), 4), DType::kBFloat16);
}

LinearPart Part(const StoredTensor& weight) {
  return {.weight = weight.view(), .row_order = {}, .bias = {}};
}

TEST_P(LinearQuantizedCudaTest, OddShapesMatchTheReference) {
  for (const Shape shape : {Shape{1, 8}, Shape{5, 64}, Shape{16, 72}, Shape{33, 520},
                            Shape{70, 1288}, Shape{130, 40}}) {
    const auto w = RandomFloats(Elements(shape.out_features, shape.in_features), 3);
    const StoredTensor weight(w, {shape.out_features, shape.in_features});
    const cuda::PackedLinear packed = Pack({Part(weight)}, LinearOutput::kFloat32);
    for (const int num_tokens : {1, 2, 7, 8, 9, 31, 33, 70}) {
      const std::vector<float> x = RandomTokens(num_tokens, shape.in_features);
      ASSERT_TRUE(AllClose(Run<float>(packed, x), Reference(w, shape, x),
                           ToleranceOf(Op(), DType::kFloat32)))
          << num_tokens << " x " << shape.in_features << " x " << shape.out_features;
    }
  }
}

TEST_P(LinearQuantizedCudaTest, NoTokensAreNoWork) {
  const StoredTensor weight(RandomFloats(64, 3), {8, 8});
  EXPECT_TRUE(Run<float>(Pack({Part(weight)}, LinearOutput::kFloat32), {}).empty());
}

TEST_P(LinearQuantizedCudaTest, StackedPartsKeepTheirOrderBiasAndResidual) {
  constexpr Shape kShape{24, 136};
  const std::vector<float> w = RandomFloats(Elements(24, 136), 5);
  const StoredTensor first({w.begin(), w.begin() + 20 * 136}, {20, 136});
  const StoredTensor second({w.begin() + 20 * 136, w.end()}, {4, 136}, DType::kBFloat16);
  const std::vector<float> bias_values = Rounded(RandomFloats(4, 7), DType::kBFloat16);
  const StoredTensor bias(bias_values, {4});
  LinearPart reversed = Part(first), biased = Part(second);
  for (int32_t row = 20; row-- > 0;) reversed.row_order.push_back(row);
  biased.bias = bias.view();
  std::vector<float> stacked;
  for (size_t row = 20; row-- > 0;)
    stacked.insert(stacked.end(), w.data() + row * 136, w.data() + (row + 1) * 136);
  const std::vector<float> rounded = Rounded({w.begin() + 20 * 136, w.end()}, DType::kBFloat16);
  stacked.insert(stacked.end(), rounded.begin(), rounded.end());
  std::vector<float> all_bias(20);
  all_bias.insert(all_bias.end(), bias_values.begin(), bias_values.end());
  for (const int num_tokens : {3, 20}) {
    const std::vector<float> x = RandomTokens(num_tokens, 136);
    const std::vector<float> y = Rounded(RandomFloats(Elements(num_tokens, 24), 9),
                                         DType::kBFloat16);
    const std::vector<float> expected = Reference(stacked, kShape, x, all_bias, y);
    EXPECT_TRUE(AllClose(Run<float>(Pack({reversed, biased}, LinearOutput::kFloat32), x, y),
                         expected, ToleranceOf(Op(), DType::kFloat32)));
    const auto activations = Run(Pack({reversed, biased}, LinearOutput::kActivation), x,
                                 ToBFloat16(y));
    EXPECT_TRUE(AllClose(ToFloat(activations), expected, ToleranceOf(Op(), DType::kBFloat16)));
  }
}

// Codes at both ends of the range; products and sums are whole numbers that float32 holds.
TEST_P(LinearIntCudaTest, WholeNumbersAreExact) {
  constexpr Shape kShape{40, 200};
  const int low = GetParam() == WeightFormat::kInt8 ? -127 : -8, high = -low - 1;
  std::vector<float> w(Elements(kShape.out_features, kShape.in_features));
  // The first number of each group is the lowest, which makes the scale 1.
  for (size_t i = 0; i < w.size(); ++i) {
    const bool is_first = i % 200 % 64 == 0;
    w[i] = static_cast<float>(is_first ? low : low + static_cast<int>(i * 37 % (high - low + 1)));
  }
  const StoredTensor weight(w, {kShape.out_features, kShape.in_features});
  const cuda::PackedLinear packed = Pack({Part(weight)}, LinearOutput::kFloat32);
  for (const int num_tokens : {1, 8, 40}) {
    std::vector<float> x(Elements(num_tokens, kShape.in_features));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i % 11) - 5);
    EXPECT_EQ(Run<float>(packed, x), Reference(w, kShape, x));
  }
}

TEST_P(LinearQuantizedCudaTest, TokenIsBitwiseIndependentOfBatch) {
  constexpr Shape kShape{83, 712};
  constexpr int kTokens = 80;
  const StoredTensor weight(RandomFloats(Elements(kShape.out_features, kShape.in_features), 11),
                            {kShape.out_features, kShape.in_features});
  const cuda::PackedLinear packed = Pack({Part(weight)}, LinearOutput::kFloat32);
  const std::vector<float> x = RandomTokens(kTokens, kShape.in_features);
  std::vector<float> alone;
  for (int token = 0; token < kTokens; ++token) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(token) * kShape.in_features;
    const std::vector<float> y = Run<float>(packed, {begin, begin + kShape.in_features});
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (const int num_tokens : {2, 8, 9, 32, 33, 80}) {
    const std::vector<float> y = Run<float>(
        packed, {x.begin(), x.begin() + static_cast<std::ptrdiff_t>(num_tokens) * 712});
    EXPECT_TRUE(SameBits(y, std::span(alone).first(y.size()))) << num_tokens << " tokens";
  }
}

TEST_P(LinearQuantizedCudaTest, NanStaysWithItsToken) {
  constexpr int kIn = 72, kOut = 40;
  const StoredTensor weight(RandomFloats(kIn * kOut, 14), {kOut, kIn});
  const cuda::PackedLinear packed = Pack({Part(weight)}, LinearOutput::kFloat32);
  for (const int num_tokens : {3, 30}) {
    std::vector<float> x = RandomTokens(num_tokens, kIn);
    const std::vector<float> clean = Run<float>(packed, x);
    x[kIn + 5] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> y = Run<float>(packed, x);
    for (size_t i = 0; i < y.size(); ++i) {
      if (i / kOut == 1) {
        ASSERT_TRUE(std::isnan(y[i]));
      } else {
        ASSERT_EQ(y[i], clean[i]);
      }
    }
  }
}

// 70 rows of weights are widened in three parts.
TEST_P(LinearIntCudaTest, ManyTokensMultiplyByWidenedWeights) {
  constexpr Shape kShape{70, 136};
  library_ = cuda::MatrixLibrary::Open({.scratch_bytes = 40 * kShape.in_features * 2}).value();
  const auto w = RandomFloats(Elements(kShape.out_features, kShape.in_features), 3);
  const StoredTensor weight(w, {kShape.out_features, kShape.in_features});
  const std::vector<float> bias_values = Rounded(RandomFloats(70, 7), DType::kBFloat16);
  const StoredTensor bias(bias_values, {70});
  LinearPart part = Part(weight);
  part.bias = bias.view();
  const std::vector<float> x = RandomTokens(65, kShape.in_features);
  const std::vector<float> y = Rounded(RandomFloats(Elements(65, kShape.out_features), 9),
                                       DType::kBFloat16);
  const auto packed = Pack({part}, LinearOutput::kFloat32);
  std::vector<float> expected;
  {
    std::vector<float> kept;
    for (size_t row = 0; row < 70; ++row) {
      const auto values = KeptWeights(GetParam(), std::span(w).subspan(row * 136, 136));
      kept.insert(kept.end(), values.begin(), values.end());
    }
    const StoredTensor wide(kept, {kShape.out_features, kShape.in_features}, DType::kBFloat16);
    LinearPart wide_part = Part(wide);
    wide_part.bias = bias.view();
    expected = y;
    LinearRef({&wide_part, 1},
              {.x = x.data(), .num_tokens = 65, .y = expected.data(), .accumulate = true});
  }
  const std::vector<float> found = Run(packed, x, y);
  EXPECT_TRUE(AllClose(found, expected, ToleranceOf(KernelOp::kLinear, DType::kFloat32)));
  const std::vector<BFloat16> rounded = Run(Pack({part}, LinearOutput::kActivation), x,
                                            ToBFloat16(y));
  EXPECT_TRUE(
      AllClose(ToFloat(rounded), expected, ToleranceOf(KernelOp::kLinear, DType::kBFloat16)));
  const std::vector<float> few = Run<float>(packed, {x.begin(), x.begin() + 64 * 136},
                                            {y.begin(), y.begin() + 64 * 70});
  EXPECT_FALSE(SameBits(few, std::span(found).first(few.size()))) << "64 tokens take the codes";
}

// The scratch memory holds 16 tokens at a time.
TEST_P(LinearFp8CudaTest, TokensBeyondTheScratchMemoryAreMultipliedLater) {
  constexpr Shape kShape{21, 40};
  const auto w = RandomFloats(Elements(kShape.out_features, kShape.in_features), 3);
  const StoredTensor weight(w, {kShape.out_features, kShape.in_features});
  const auto packed = Pack({Part(weight)}, LinearOutput::kActivation);
  const std::vector<float> x = RandomTokens(40, kShape.in_features);
  const std::vector<BFloat16> whole = Run<BFloat16>(packed, x);
  library_ = cuda::MatrixLibrary::Open(
                 {.batch_invariant = true, .scratch_bytes = 16 * (48 + 4 * 4097)})
                 .value();
  EXPECT_EQ(Run<BFloat16>(packed, x), whole);
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

std::string NameOfFormat(const ::testing::TestParamInfo<WeightFormat>& format) {
  return std::string(NameOf(format.param));
}
INSTANTIATE_TEST_SUITE_P(Formats, LinearQuantizedCudaTest,
                         ::testing::Values(WeightFormat::kInt8, WeightFormat::kInt4,
                                           WeightFormat::kFp8E4M3),
                         NameOfFormat);
INSTANTIATE_TEST_SUITE_P(Formats, LinearIntCudaTest, ::testing::ValuesIn(kQuantizedFormats),
                         NameOfFormat);
INSTANTIATE_TEST_SUITE_P(Formats, LinearFp8CudaTest, ::testing::Values(WeightFormat::kFp8E4M3),
                         NameOfFormat);

}  // namespace
}  // namespace diffserve
