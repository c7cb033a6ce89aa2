// SPDX-License-Identifier: Apache-2.0
// Products with quantised weights on a device, by few-row kernels, by codes on the way to wgmma and
// by cuBLASLt: against the double-precision product of the weights that the format keeps, and with
// the same bits for every number of tokens. cuBLASLt takes int8 and int4 weights as bfloat16, and
// fp8 ones with activations that are quantised too.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/ops/few_rows_cuda.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/ops/rowwise.h"
#include "kernels/ops/weight_packer_cuda.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/kept_weights.h"
#include "tests/testing/kernels/stored_values.h"
#if defined(DIFFSERVE_CUDA_ON_CPU)
#include "tests/kernels/shim/simulated_products.h"
#endif

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

enum class By { kFewRows, kCodes, kLibrary };
struct Way {
  WeightFormat format;
  By by;
};

class LinearQuantizedCudaTest : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (!testing::KernelsCanRun()) GTEST_SKIP() << "there is no device";
    if (!testing::DeviceMultiplies(Format()))
      GTEST_SKIP() << cuda::OpenDevice(0)->name << " multiplies no fp8 numbers";
    stream_.emplace(cuda::Stream::Create().value());
    if (GetParam().by == By::kCodes &&
        !cuda::MultiplyCodes({.weight = {.format = Format()}}, *stream_).value())
      GTEST_SKIP() << cuda::OpenDevice(0)->name << " has no wgmma";
    Open(1 << 20);
    few_rows_ =
        cuda::FewRows::Create(cuda::OpenDevice(0).value(), size_t{4} << 20, *stream_).value();
  }
  void Open(size_t scratch_bytes, bool scales_rows = true) {
    library_ = cuda::MatrixLibrary::Open({.batch_invariant = true,
                                          .scratch_bytes = scratch_bytes,
                                          .has_fp8_weights = scales_rows,
                                          .widens_weights = GetParam().by == By::kLibrary})
                   .value();
  }
  static WeightFormat Format() { return GetParam().format; }

  cuda::PackedLinear Pack(const std::vector<LinearPart>& parts, LinearOutput output) {
    cuda::WeightPacker packer(*stream_, Format(), kBaseCpuIsa, pool_);
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
    const LinearArgs<BFloat16, Y> args = {.x = device_x.data(),
                                          .num_tokens = num_tokens,
                                          .y = device_y.data(),
                                          .accumulate = accumulate};
    const Status status = GetParam().by == By::kFewRows
                              ? cuda::LinearFewRows(weight, args, {few_rows_}, *stream_)
                              : cuda::Linear(weight, args, *library_, *stream_);
    EXPECT_TRUE(status.ok()) << status.message();
    return device_y.Read(*stream_);
  }

  static bool QuantizesX() {
    return Format() == WeightFormat::kFp8E4M3 && GetParam().by == By::kLibrary;
  }
  // Whether weights, times their scales, are rounded to bfloat16.
  static bool Widens() {
    return (GetParam().by == By::kLibrary && !QuantizesX()) ||
           (GetParam().by == By::kCodes && Format() == WeightFormat::kInt4);
  }
  static KernelOp Op() { return QuantizesX() ? KernelOp::kFp8Linear : KernelOp::kLinear; }

  // x times the weights that the format keeps, plus bias and y.
  std::vector<float> Reference(std::span<const float> w, Shape shape, std::span<const float> x,
                               std::span<const float> bias = {},
                               std::span<const float> y = {}) const {
    const auto out = static_cast<size_t>(shape.out_features),
               in = static_cast<size_t>(shape.in_features);
    std::vector<float> sums(x.size() / in * out);
    for (size_t feature = 0; feature < out; ++feature) {
      std::vector<float> weights = KeptWeights(Format(), w.subspan(feature * in, in));
      if (Widens()) weights = Rounded(weights, DType::kBFloat16);
      for (size_t token = 0; token < x.size() / in; ++token) {
        std::vector<float> row(x.begin() + static_cast<std::ptrdiff_t>(token * in),
                               x.begin() + static_cast<std::ptrdiff_t>((token + 1) * in));
        if (QuantizesX()) row = KeptWeights(Format(), row);
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
  cuda::FewRows few_rows_;
};

class LinearIntCudaTest : public LinearQuantizedCudaTest {};
class LinearWidenedCudaTest : public LinearQuantizedCudaTest {};
class LinearFp8CudaTest : public LinearQuantizedCudaTest {};
class LinearCodesCudaTest : public LinearQuantizedCudaTest {};

std::vector<float> RandomTokens(int num_tokens, int in_features) {
  return Rounded(RandomFloats(Elements(num_tokens, in_features), 4), DType::kBFloat16);
}

LinearPart Part(const StoredTensor& weight) {
  return {.weight = weight.view(), .row_order = {}, .bias = {}};
}

TEST_P(LinearQuantizedCudaTest, OddShapesMatchTheReference) {
  for (const Shape shape : {Shape{1, 8}, Shape{5, 64}, Shape{16, 72}, Shape{33, 520},
                            Shape{70, 1288}, Shape{130, 40}, Shape{48, 328}}) {
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
  const int low = Format() == WeightFormat::kInt8 ? -127 : -8, high = -low - 1;
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
TEST_P(LinearWidenedCudaTest, PartsOfTheMatrixAreWidened) {
  constexpr Shape kShape{70, 136};
  library_ = cuda::MatrixLibrary::Open(
                 {.scratch_bytes = 40 * kShape.in_features * 2, .widens_weights = true})
                 .value();
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
  const std::vector<float> expected = Reference(w, kShape, x, bias_values, y);
  const std::vector<float> found = Run(packed, x, y);
  EXPECT_TRUE(AllClose(found, expected, ToleranceOf(KernelOp::kLinear, DType::kFloat32)));
  const std::vector<BFloat16> rounded = Run(Pack({part}, LinearOutput::kActivation), x,
                                            ToBFloat16(y));
  EXPECT_TRUE(
      AllClose(ToFloat(rounded), expected, ToleranceOf(KernelOp::kLinear, DType::kBFloat16)));

  // The same rows alone, also where cuBLASLt's kernel refuses their number.
  Open(40 * kShape.in_features * 2);
  const std::vector<float> all = Run(packed, x, y);
  EXPECT_TRUE(AllClose(all, expected, ToleranceOf(KernelOp::kLinear, DType::kFloat32)));
  const auto run_few = [&] {
    return Run<float>(packed, {x.begin(), x.begin() + 3 * 136}, {y.begin(), y.begin() + 3 * 70});
  };
  EXPECT_TRUE(SameBits(run_few(), std::span(all).first(3 * 70)));
#if defined(DIFFSERVE_CUDA_ON_CPU)
  shim::simulated_products.rows_refused = 3;
  Open(40 * kShape.in_features * 2);
  EXPECT_TRUE(SameBits(run_few(), std::span(all).first(3 * 70)));
  shim::simulated_products = {};
#endif
}

// The scratch memory holds 16 tokens at a time.
TEST_P(LinearFp8CudaTest, TokensBeyondTheScratchMemoryAreMultipliedLater) {
  constexpr Shape kShape{21, 40};
  const auto w = RandomFloats(Elements(kShape.out_features, kShape.in_features), 3);
  const StoredTensor weight(w, {kShape.out_features, kShape.in_features});
  const auto packed = Pack({Part(weight)}, LinearOutput::kActivation);
  const std::vector<float> x = RandomTokens(40, kShape.in_features);
  const std::vector<BFloat16> whole = Run<BFloat16>(packed, x);
  Open(16 * (48 + 4 * 4097), /*scales_rows=*/false);
  EXPECT_EQ(Run<BFloat16>(packed, x), whole);
}

// The scratch memory has room for 128 tokens' codes, and for no sums.
TEST_P(LinearFp8CudaTest, ScalesAreAppliedWithoutSumsInMemory) {
  constexpr Shape kShape{48, 136};
  constexpr int kTokens = 150;
  const std::vector<float> w = RandomFloats(Elements(kShape.out_features, kShape.in_features), 3);
  const StoredTensor weight(w, {kShape.out_features, kShape.in_features});
  Open(128 * (144 + 4));
  if (!library_->scales_rows()) GTEST_SKIP() << "cuBLASLt has no such kernels for the device";
  const std::vector<float> x = RandomTokens(kTokens, kShape.in_features);
  const std::vector<float> y = Rounded(RandomFloats(Elements(kTokens, kShape.out_features), 9),
                                       DType::kBFloat16);
  const auto packed = Pack({Part(weight)}, LinearOutput::kFloat32);
  const std::vector<float> expected = Reference(w, kShape, x),
                           added = Reference(w, kShape, x, {}, y);
  EXPECT_TRUE(AllClose(Run<float>(packed, x), expected, ToleranceOf(Op(), DType::kFloat32)));
  EXPECT_TRUE(AllClose(Run<float>(packed, x, y), added, ToleranceOf(Op(), DType::kFloat32)));
  const auto activations = Run<BFloat16>(Pack({Part(weight)}, LinearOutput::kActivation), x);
  EXPECT_TRUE(AllClose(ToFloat(activations), expected, ToleranceOf(Op(), DType::kBFloat16)));
#if defined(DIFFSERVE_CUDA_ON_CPU)
  const std::vector<float> all = Run<float>(packed, x);
  shim::simulated_products.rows_refused = 22;  // the rest of 150 after 128
  Open(128 * (144 + 4));
  EXPECT_TRUE(SameBits(Run<float>(packed, x), all)) << "the last rows are padded";
  shim::simulated_products = {};
#endif
}

#if defined(DIFFSERVE_CUDA_ON_CPU)
TEST_P(LinearFp8CudaTest, DevicesWithoutKernelsForScalesAreNotAskedForThem) {
  const StoredTensor weight(RandomFloats(16 * 64, 3), {16, 64});
  const std::vector<float> x = RandomTokens(3, 64);
  const auto packed = Pack({Part(weight)}, LinearOutput::kFloat32);
  const std::vector<float> expected = Run<float>(packed, x);
  shim::simulated_device.compute_capability_major = 10;
  Open(1 << 20);
  EXPECT_FALSE(library_->scales_rows());
  EXPECT_TRUE(AllClose(Run<float>(packed, x), expected, ToleranceOf(Op(), DType::kFloat32)));
  shim::simulated_device = {};
}
#endif

// A NaN of the checkpoint, and one that an infinity becomes.
TEST_P(LinearFp8CudaTest, NanOfAWeightReachesItsFeature) {
  constexpr int kIn = 72, kOut = 40;
  std::vector<float> w = RandomFloats(kIn * kOut, 14);
  const std::vector<float> x = RandomTokens(3, kIn);
  const auto run = [&] {
    const StoredTensor weight(w, {kOut, kIn});
    return Run<float>(Pack({Part(weight)}, LinearOutput::kFloat32), x);
  };
  const std::vector<float> clean = run();
  w[9 * kIn + 5] = std::numeric_limits<float>::quiet_NaN();
  w[17 * kIn + 6] = std::numeric_limits<float>::infinity();
  const std::vector<float> y = run();
  for (size_t i = 0; i < y.size(); ++i) {
    const bool has_nan = i % kOut == 9 || i % kOut == 17;
    ASSERT_TRUE(has_nan ? std::isnan(y[i]) : y[i] == clean[i]) << i;
  }
}

TEST_P(LinearCodesCudaTest, EveryPlanGivesTheSameBits) {
  constexpr Shape kShape{84, 520};
  constexpr int kTokens = 37;
  const StoredTensor weight(RandomFloats(Elements(kShape.out_features, kShape.in_features), 8),
                            {kShape.out_features, kShape.in_features});
  const cuda::PackedLinear packed = Pack({Part(weight)}, LinearOutput::kFloat32);
  const std::vector<float> x = RandomTokens(kTokens, kShape.in_features);
  const std::vector<float> expected = Run<float>(packed, x);
  const DeviceArray<BFloat16> device_x(ToBFloat16(x), *stream_);
  for (const int splits : {1, 2, 4, 8}) {
    for (const auto& [tile, tiles_at_once] : {std::pair{64, 1}, {32, 2}, {16, 1}, {8, 5}, {3, 4}}) {
      for (const int columns : {1, 3}) {
        const DeviceArray<float> y(std::vector<float>(expected.size()), *stream_);
        const cuda::FewRowsProduct product = {.format = Format(),
                                              .weight = packed.weight(),
                                              .scale = packed.matrix().scale,
                                              .in_features = kShape.in_features,
                                              .out_features = kShape.out_features,
                                              .x = device_x.data(),
                                              .x_stride = kShape.in_features,
                                              .num_tokens = kTokens,
                                              .y = y.data(),
                                              .y_dtype = DType::kFloat32};
        const cuda::FewRowsPlan plan = {.splits = splits,
                                        .columns = columns,
                                        .tile = tile,
                                        .tiles_at_once = tiles_at_once,
                                        .stages = columns == 1 ? 2 : 3};
        ASSERT_TRUE(few_rows_.Multiply(product, plan, *stream_).ok());
        EXPECT_TRUE(SameBits(y.Read(*stream_), expected))
            << splits << " splits, " << columns << " columns, tiles of " << tile;
      }
    }
  }
}

TEST_P(LinearCodesCudaTest, FusedSiluMulHasTheBitsOfItsOwnKernel) {
  constexpr int kWidth = 40, kIn = 328;
  const StoredTensor weight(RandomFloats(2 * kWidth * kIn, 12), {2 * kWidth, kIn}),
      bias(Rounded(RandomFloats(2 * kWidth, 7), DType::kBFloat16), {2 * kWidth});
  for (const bool has_bias : {false, true}) {
    LinearPart part = Part(weight);
    if (has_bias) part.bias = bias.view();
    const cuda::PackedLinear packed = Pack({part}, LinearOutput::kActivation);
    for (const int num_tokens : {1, 30}) {
      const std::vector<float> x = RandomTokens(num_tokens, kIn);
      const DeviceArray<BFloat16> gate_up(Run<BFloat16>(packed, x), *stream_);
      const std::vector<BFloat16> nothing(Elements(num_tokens, kWidth));
      const DeviceArray<BFloat16> apart(nothing, *stream_), fused(nothing, *stream_),
          device_x(ToBFloat16(x), *stream_);
      ASSERT_TRUE(cuda::SiluMul({gate_up.data(), apart.data(), num_tokens, kWidth}, *stream_).ok());
      ASSERT_TRUE(cuda::LinearSiluMulFewRows(
                      packed, {.x = device_x.data(), .num_tokens = num_tokens, .y = fused.data()},
                      {few_rows_}, *stream_)
                      .ok());
      EXPECT_EQ(fused.Read(*stream_), apart.Read(*stream_)) << num_tokens << " tokens";
    }
  }
}

// All codes that the format has, one after another in a row; AddressSanitizer watches what is
// brought near.
TEST_P(LinearCodesCudaTest, EveryCodeIsExactAndNextWeightsAreBroughtNear) {
  constexpr Shape kShape{20, 256};
  std::vector<float> w(Elements(kShape.out_features, kShape.in_features));
  for (size_t i = 0; i < w.size(); ++i) {
    const auto code = static_cast<int>((i + i / 256) % 256);
    w[i] = Format() == WeightFormat::kInt8   ? static_cast<float>(std::max(code - 128, -127))
           : Format() == WeightFormat::kInt4 ? static_cast<float>(code % 16 - 8)
           : (code & 0x7f) == 0x7f           ? 448.0f
                                             : Fp8E4M3ToFloat(static_cast<uint8_t>(code));
  }
  const StoredTensor weight(w, {kShape.out_features, kShape.in_features});
  const cuda::PackedLinear packed = Pack({Part(weight)}, LinearOutput::kFloat32);
  // A token for each input feature: y is the weights.
  std::vector<float> x(256 * 256);
  for (size_t i = 0; i < 256; ++i) x[i * 257] = 1;
  const DeviceArray<BFloat16> device_x(ToBFloat16(x), *stream_);
  const DeviceArray<float> y(std::vector<float>(256 * 20), *stream_);
  cuda::FewRowsProduct product = {.format = Format(),
                                  .weight = packed.weight(),
                                  .scale = packed.matrix().scale,
                                  .in_features = 256,
                                  .out_features = 20,
                                  .x = device_x.data(),
                                  .x_stride = 256,
                                  .num_tokens = 256,
                                  .y = y.data(),
                                  .y_dtype = DType::kFloat32};
  const cuda::FewRowsPlan plan = cuda::PlanFewRows(product, few_rows_.limits()).value();
  product.ahead = cuda::AheadOf(product, plan, 1e6);
  EXPECT_GT(product.ahead.units, 0);
  ASSERT_TRUE(few_rows_.Multiply(product, plan, *stream_).ok());
  const std::vector<float> found = y.Read(*stream_);
  for (size_t i = 0; i < w.size(); ++i) ASSERT_EQ(found[i % 256 * 20 + i / 256], w[i]) << i;
}

std::string NameOfWay(const ::testing::TestParamInfo<Way>& way) {
  const By by = way.param.by;
  return std::string(NameOf(way.param.format)) + (by == By::kFewRows ? "_few_rows"
                                                  : by == By::kCodes ? "_codes"
                                                                     : "");
}
constexpr Way kInt8{WeightFormat::kInt8, By::kLibrary}, kInt4{WeightFormat::kInt4, By::kLibrary},
    kFp8{WeightFormat::kFp8E4M3, By::kLibrary}, kInt8Few{WeightFormat::kInt8, By::kFewRows},
    kInt4Few{WeightFormat::kInt4, By::kFewRows}, kFp8Few{WeightFormat::kFp8E4M3, By::kFewRows},
    kInt8Codes{WeightFormat::kInt8, By::kCodes}, kInt4Codes{WeightFormat::kInt4, By::kCodes};
INSTANTIATE_TEST_SUITE_P(Ways, LinearQuantizedCudaTest,
                         ::testing::Values(kInt8, kInt4, kFp8, kInt8Few, kInt4Few, kFp8Few,
                                           kInt8Codes, kInt4Codes),
                         NameOfWay);
INSTANTIATE_TEST_SUITE_P(Ways, LinearIntCudaTest,
                         ::testing::Values(kInt8, kInt4, kInt8Few, kInt4Few, kInt8Codes,
                                           kInt4Codes),
                         NameOfWay);
INSTANTIATE_TEST_SUITE_P(Ways, LinearWidenedCudaTest, ::testing::Values(kInt8, kInt4), NameOfWay);
INSTANTIATE_TEST_SUITE_P(Ways, LinearFp8CudaTest, ::testing::Values(kFp8, kFp8Few), NameOfWay);
INSTANTIATE_TEST_SUITE_P(Ways, LinearCodesCudaTest, ::testing::Values(kInt8Few, kInt4Few, kFp8Few),
                         NameOfWay);

}  // namespace
}  // namespace diffserve
