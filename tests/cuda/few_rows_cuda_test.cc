// SPDX-License-Identifier: Apache-2.0
// Products of few rows with bfloat16 weights on a device: near the double-precision product, and
// the same bits by every plan, for every number of tokens, and fused with what follows.
#include "kernels/ops/few_rows_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/ops/linear.h"
#include "kernels/ops/rowwise.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/stored_values.h"
#if defined(DIFFSERVE_CUDA_ON_CPU)
#include "tests/kernels/shim/device_memory.h"
#endif

namespace diffserve {
namespace {

using cuda::FewRows;
using cuda::FewRowsForm;
using cuda::FewRowsPlan;
using cuda::FewRowsProduct;
using testing::AllClose;
using testing::DeviceArray;
using testing::IsOk;
using testing::KernelOp;
using testing::RandomFloats;
using testing::Rounded;
using testing::SameBits;
using testing::ToBFloat16;
using testing::ToFloat;
using testing::ToleranceOf;

size_t Elements(int rows, int columns) {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns);
}
std::vector<float> RandomBFloat16s(int rows, int columns, uint32_t seed) {
  return Rounded(RandomFloats(Elements(rows, columns), seed), DType::kBFloat16);
}

class FewRowsTest : public testing::OnDeviceTest {
 protected:
  void SetUp() override {
    OnDeviceTest::SetUp();
    if (IsSkipped()) return;
    few_rows_ = FewRows::Create(device_, size_t{4} << 20, *stream_).value();
  }

  // What a product takes, in host memory.
  struct Case {
    int out_features;
    int in_features;
    std::vector<float> w = RandomBFloat16s(out_features, in_features, 3);
    int64_t x_stride = in_features;
    FewRowsForm form = FewRowsForm::kStore;
    std::vector<float> bias = {};
  };

  template <typename Y>
  std::vector<Y> Run(const Case& of, const std::vector<float>& x, std::vector<Y> y = {},
                     const FewRowsPlan* plan = nullptr,
                     const cuda::FewRowsAhead& ahead = {}) const {
    const int num_tokens = static_cast<int>(x.size() / static_cast<size_t>(of.x_stride));
    const DeviceArray<BFloat16> weight(ToBFloat16(of.w), *stream_),
        device_x(ToBFloat16(x), *stream_);
    std::vector<Y> bias_values;
    if constexpr (std::is_same_v<Y, float>) {
      bias_values = of.bias;
    } else {
      bias_values = ToBFloat16(of.bias);
    }
    const DeviceArray<Y> bias(bias_values, *stream_);
    FewRowsProduct product = {.weight = weight.data(),
                              .in_features = of.in_features,
                              .out_features = of.out_features,
                              .x = device_x.data(),
                              .x_stride = of.x_stride,
                              .num_tokens = num_tokens,
                              .form = of.form,
                              .y_dtype = sizeof(Y) == 4 ? DType::kFloat32 : DType::kBFloat16,
                              .bias = bias.data(),
                              .accumulate = !y.empty(),
                              .ahead = ahead};
    y.resize(Elements(num_tokens, product.YWidth()));
    const DeviceArray<Y> device_y(y, *stream_);
    product.y = device_y.data();
    EXPECT_TRUE(IsOk(plan == nullptr ? few_rows_.Multiply(product, *stream_)
                                     : few_rows_.Multiply(product, *plan, *stream_)));
    return device_y.Read(*stream_);
  }

  static std::vector<float> Reference(const Case& of, const std::vector<float>& x,
                                      std::vector<float> y = {}) {
    const testing::StoredTensor weight(of.w, {of.out_features, of.in_features});
    const testing::StoredTensor bias(of.bias, {static_cast<int64_t>(of.bias.size())});
    LinearPart part = {.weight = weight.view(), .row_order = {}, .bias = {}};
    if (!of.bias.empty()) part.bias = bias.view();
    const bool accumulate = !y.empty();
    const int num_tokens = static_cast<int>(x.size() / static_cast<size_t>(of.x_stride));
    y.resize(Elements(num_tokens, of.out_features));
    LinearRef({&part, 1}, {.x = x.data(),
                           .num_tokens = num_tokens,
                           .y = y.data(),
                           .accumulate = accumulate,
                           .x_stride = of.x_stride});
    return y;
  }

  FewRows few_rows_;
};

TEST_F(FewRowsTest, OddShapesMatchTheReference) {
  for (const auto& [out, in] : {std::pair{1, 8}, {5, 72}, {24, 200}, {33, 520}, {70, 3000}}) {
    for (const int num_tokens : {1, 2, 7, 8, 9, 17, 40, 65}) {
      Case of{.out_features = out, .in_features = in, .x_stride = in + 16};
      const std::vector<float> x = RandomBFloat16s(num_tokens, in + 16, 4);
      ASSERT_TRUE(AllClose(Run<float>(of, x), Reference(of, x),
                           ToleranceOf(KernelOp::kLinear, DType::kFloat32)))
          << num_tokens << " x " << in << " x " << out;
    }
  }
}

TEST_F(FewRowsTest, BiasAndResidualAreRoundedOnce) {
  Case of{.out_features = 40, .in_features = 200};
  of.bias = RandomBFloat16s(40, 1, 5);
  for (const int num_tokens : {3, 20}) {
    const std::vector<float> x = RandomBFloat16s(num_tokens, 200, 6),
                             y = RandomBFloat16s(num_tokens, 40, 7);
    const std::vector<float> sums = Run<float>(of, x, y);
    EXPECT_TRUE(
        AllClose(sums, Reference(of, x, y), ToleranceOf(KernelOp::kLinear, DType::kFloat32)));
    EXPECT_EQ(Run<BFloat16>(of, x, ToBFloat16(y)), ToBFloat16(sums));
  }
}

TEST_F(FewRowsTest, NoTokensAreNoWork) {
  EXPECT_TRUE(Run<float>(Case{.out_features = 8, .in_features = 8}, {}).empty());
}

// Every split of in_features, two numbers of thread blocks, each size of token tiles, side by side
// and one after another, and both depths of the ring.
TEST_F(FewRowsTest, EveryPlanGivesTheSameBits) {
  const Case of{.out_features = 84, .in_features = 520};
  const std::vector<float> x = RandomBFloat16s(37, 520, 8);
  const std::vector<float> expected = Run<float>(of, x);
  for (const int splits : {1, 2, 4, 8}) {
    for (const auto& [tile, tiles_at_once] : {std::pair{64, 1}, {32, 2}, {16, 1}, {8, 5}, {3, 4}}) {
      for (const int columns : {1, 3}) {
        const FewRowsPlan plan = {.splits = splits,
                                  .columns = columns,
                                  .tile = tile,
                                  .tiles_at_once = tiles_at_once,
                                  .stages = columns == 1 ? 2 : 3};
        EXPECT_TRUE(SameBits(Run<float>(of, x, {}, &plan), expected))
            << splits << " splits, " << columns << " columns, tiles of " << tile;
      }
    }
  }
}

TEST_F(FewRowsTest, TokenHasTheSameBitsInEveryNumberOfTokens) {
  const Case of{.out_features = 24, .in_features = 264};
  constexpr int kTokens = 130;
  const std::vector<float> x = RandomBFloat16s(kTokens, 264, 9);
  const std::vector<float> all = Run<float>(of, x);
  for (int num_tokens = 1; num_tokens < kTokens; num_tokens += num_tokens < 20 ? 1 : 13) {
    // The last ones.
    const auto first = static_cast<std::ptrdiff_t>(kTokens - num_tokens);
    const std::vector<float> some = Run<float>(of, {x.begin() + first * 264, x.end()});
    EXPECT_TRUE(SameBits(some, std::span(all).last(some.size()))) << num_tokens << " tokens";
  }
}

TEST_F(FewRowsTest, FeatureHasTheSameBitsInEveryPlace) {
  Case of{.out_features = 37, .in_features = 136};
  const std::vector<float> x = RandomBFloat16s(5, 136, 10);
  const std::vector<float> expected = Run<float>(of, x);
  Case reversed = of;
  for (int row = 0; row < 37; ++row)
    std::copy_n(of.w.begin() + (36 - row) * 136, 136, reversed.w.begin() + row * 136);
  const std::vector<float> found = Run<float>(reversed, x);
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(found[i / 37 * 37 + 36 - i % 37], expected[i]);
}

TEST_F(FewRowsTest, EveryScheduleOfThreadsGivesTheSameBits) {
  Case of{.out_features = 80, .in_features = 1160, .form = FewRowsForm::kSiluMul};
  const std::vector<float> x = RandomBFloat16s(11, 1160, 11);
  const std::vector<BFloat16> expected = Run<BFloat16>(of, x);
  for (const int splits : {1, 4}) {
    const FewRowsPlan plan = {.splits = splits, .columns = 2, .tile = 11, .stages = 3};
    OnEverySchedule([&] { EXPECT_EQ(Run<BFloat16>(of, x, {}, &plan), expected); });
  }
}

TEST_F(FewRowsTest, FusedSiluMulHasTheBitsOfItsOwnKernel) {
  constexpr int kWidth = 40, kIn = 328;
  for (const bool has_bias : {false, true}) {
    Case of{.out_features = 2 * kWidth, .in_features = kIn};
    if (has_bias) of.bias = RandomBFloat16s(2 * kWidth, 1, 12);
    for (const int num_tokens : {1, 8, 30, 70}) {
      const std::vector<float> x = RandomBFloat16s(num_tokens, kIn, 13);
      const DeviceArray<BFloat16> gate_up(Run<BFloat16>(of, x), *stream_);
      const DeviceArray<BFloat16> apart(std::vector<BFloat16>(Elements(num_tokens, kWidth)),
                                        *stream_);
      ASSERT_TRUE(
          IsOk(cuda::SiluMul({gate_up.data(), apart.data(), num_tokens, kWidth}, *stream_)));
      Case fused = of;
      fused.form = FewRowsForm::kSiluMul;
      EXPECT_EQ(Run<BFloat16>(fused, x), apart.Read(*stream_)) << num_tokens << " tokens";
    }
  }
}

TEST_F(FewRowsTest, NormInsideHasTheBitsOfItsOwnKernel) {
  constexpr int kIn = 2056, kOut = 24, kTokens = 11;
  const Case of{.out_features = kOut, .in_features = kIn};
  const DeviceArray<BFloat16> weight(ToBFloat16(of.w), *stream_);
  // RmsNorm brings the first token's numbers to the middle between two bfloat16 numbers, where the
  // last bit of float32 decides.
  const std::vector<float> rows = RandomFloats(kTokens * kIn, 18);
  double squares = 0;
  for (size_t i = 0; i < kIn; ++i) squares += double{rows[i]} * rows[i];
  std::vector<float> weights(kIn);
  for (size_t i = 0; i < kIn; ++i) {
    const double middle = 1 + static_cast<double>(2 * (i % 64) + 1) / 256;
    weights[i] = static_cast<float>(middle * std::sqrt(squares / kIn + 1e-5) / rows[i]);
  }
  const DeviceArray<float> hidden(rows, *stream_), scale(weights, *stream_),
      bias(RandomFloats(kIn, 20), *stream_);
  for (const bool is_layer_norm : {false, true}) {
    const DeviceArray<BFloat16> normed(std::vector<BFloat16>(kTokens * kIn), *stream_);
    ASSERT_TRUE(IsOk(is_layer_norm ? cuda::LayerNorm({hidden.data(), scale.data(), bias.data(),
                                                      normed.data(), kTokens, kIn, 1e-5f},
                                                     *stream_)
                                   : cuda::RmsNorm({hidden.data(), scale.data(), normed.data(),
                                                    kTokens, kIn, 1e-5f},
                                                   *stream_)));
    const std::vector<float> expected = Run<float>(of, ToFloat(normed.Read(*stream_)));
    const DeviceArray<float> y(std::vector<float>(kTokens * kOut), *stream_);
    for (const int num_tokens : {1, 3, 8, kTokens}) {
      FewRowsProduct product = {
          .weight = weight.data(),
          .in_features = kIn,
          .out_features = kOut,
          .norm = {hidden.data(), scale.data(), is_layer_norm ? bias.data() : nullptr, 1e-5f},
          .num_tokens = num_tokens,
          .y = y.data(),
          .y_dtype = DType::kFloat32};
      for (const int splits : {1, 8}) {
        const FewRowsPlan plan = cuda::PlanFewRows(product, few_rows_.limits(), splits).value();
        ASSERT_TRUE(IsOk(few_rows_.Multiply(product, plan, *stream_)));
        const std::vector<float> found = y.Read(*stream_);
        const size_t count = Elements(num_tokens, kOut);
        EXPECT_TRUE(SameBits(std::span(found).first(count), std::span(expected).first(count)))
            << num_tokens << " tokens, " << splits << " splits";
      }
    }
  }
}

TEST_F(FewRowsTest, PolyNormInsideHasTheBitsOfItsOwnKernel) {
  constexpr int kOut = 24, kTokens = 3;
  for (const int in : {200, 2056, 16392}) {
    const Case of{.out_features = kOut, .in_features = in};
    const DeviceArray<BFloat16> weight(ToBFloat16(of.w), *stream_),
        gate_up(ToBFloat16(RandomBFloat16s(kTokens, 2 * in, 25)), *stream_),
        x(std::vector<BFloat16>(Elements(kTokens, in)), *stream_);
    const PolyNormMulArgs<BFloat16> poly = {gate_up.data(),      x.data(), kTokens, in,
                                            {0.3f, -0.2f, 0.7f}, 0.1f};
    ASSERT_TRUE(IsOk(cuda::PolyNormMul(poly, *stream_)));
    const std::vector<float> expected = Run<float>(of, ToFloat(x.Read(*stream_)));
    const DeviceArray<float> y(std::vector<float>(Elements(kTokens, kOut)), *stream_);
    for (const int num_tokens : {1, kTokens}) {
      const FewRowsProduct product = {.weight = weight.data(),
                                      .in_features = in,
                                      .out_features = kOut,
                                      .poly = poly,
                                      .num_tokens = num_tokens,
                                      .y = y.data(),
                                      .y_dtype = DType::kFloat32};
      for (const int splits : {1, 8}) {
        const FewRowsPlan plan = cuda::PlanFewRows(product, few_rows_.limits(), splits).value();
        ASSERT_TRUE(IsOk(few_rows_.Multiply(product, plan, *stream_)));
        const std::vector<float> found = y.Read(*stream_);
        const size_t count = Elements(num_tokens, kOut);
        EXPECT_TRUE(SameBits(std::span(found).first(count), std::span(expected).first(count)))
            << in << " features, " << num_tokens << " tokens, " << splits << " splits";
      }
    }
  }
}

TEST_F(FewRowsTest, NanStaysWithItsToken) {
  const Case of{.out_features = 40, .in_features = 72};
  for (const int num_tokens : {3, 30}) {
    std::vector<float> x = RandomBFloat16s(num_tokens, 72, 14);
    const std::vector<float> clean = Run<float>(of, x);
    x[72 + 5] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> y = Run<float>(of, x);
    for (size_t i = 0; i < y.size(); ++i) {
      if (i / 40 == 1) {
        ASSERT_TRUE(std::isnan(y[i]));
      } else {
        ASSERT_EQ(y[i], clean[i]);
      }
    }
  }
}

// A row of infinities beside others: what lies in shared memory after it is no factor of theirs.
TEST_F(FewRowsTest, InfiniteWeightsStayWithTheirFeature) {
  Case of{.out_features = 33, .in_features = 72};
  const std::vector<float> x = RandomBFloat16s(2, 72, 15);
  const std::vector<float> clean = Run<float>(of, x);
  for (size_t i = 0; i < 72; ++i) of.w[9 * 72 + i] = std::numeric_limits<float>::infinity();
  const std::vector<float> y = Run<float>(of, x);
  for (size_t i = 0; i < y.size(); ++i)
    ASSERT_TRUE(i % 33 == 9 ? !std::isfinite(y[i]) : y[i] == clean[i]) << i;
}

// Rows of both halves, the last of fewer than eight rows; AddressSanitizer watches the addresses.
TEST_F(FewRowsTest, NextWeightsAreBroughtNearAndChangeNothing) {
  const Case of{.out_features = 40, .in_features = 200},
      next{.out_features = 72, .in_features = 264};
  const std::vector<float> x = RandomBFloat16s(2, 200, 16);
  const DeviceArray<BFloat16> next_weight(ToBFloat16(next.w), *stream_);
  for (const FewRowsForm form : {FewRowsForm::kStore, FewRowsForm::kSiluMul}) {
    FewRowsProduct product = {.weight = next_weight.data(),
                              .in_features = 264,
                              .out_features = 72,
                              .num_tokens = 2,
                              .form = form};
    const FewRowsPlan plan = cuda::PlanFewRows(product, few_rows_.limits()).value();
    const cuda::FewRowsAhead ahead = cuda::AheadOf(product, plan, 1e6);
    EXPECT_GT(ahead.units * ahead.workers, 4);
    EXPECT_EQ(cuda::AheadOf(product, plan, 1e3).units, 0);
    EXPECT_EQ(Run<float>(of, x, {}, nullptr, ahead), Run<float>(of, x));
  }
}

// A chain in which each product reads what the one before it writes, one by split sums. Where the
// device can, products begin before the one before them ends.
TEST_F(FewRowsTest, ProductsThatFollowKernelsHaveTheSameBits) {
  constexpr int kWidth = 136, kTokens = 3;
  const DeviceArray<BFloat16> weight(ToBFloat16(RandomBFloat16s(2 * kWidth, kWidth, 21)), *stream_),
      x(ToBFloat16(RandomBFloat16s(kTokens, kWidth, 22)), *stream_);
  const DeviceArray<float> scale(RandomFloats(kWidth, 23), *stream_);
  const auto run = [&](bool follows_kernel, int splits) {
    const DeviceArray<float> hidden(RandomFloats(kTokens * kWidth, 24), *stream_);
    const DeviceArray<BFloat16> inner(std::vector<BFloat16>(kTokens * kWidth), *stream_);
    FewRowsProduct first = {.weight = weight.data(),
                            .in_features = kWidth,
                            .out_features = kWidth,
                            .x = x.data(),
                            .x_stride = kWidth,
                            .num_tokens = kTokens,
                            .y = hidden.data(),
                            .y_dtype = DType::kFloat32,
                            .accumulate = true};
    FewRowsProduct second = {.weight = weight.data(),
                             .in_features = kWidth,
                             .out_features = 2 * kWidth,
                             .norm = {.rows = hidden.data(), .weight = scale.data(), .eps = 1e-5f},
                             .num_tokens = kTokens,
                             .form = FewRowsForm::kSiluMul,
                             .y = inner.data(),
                             .follows_kernel = follows_kernel};
    FewRowsProduct third = first;
    third.x = inner.data();
    third.follows_kernel = follows_kernel;
    const FewRowsPlan plan = {.splits = splits, .columns = 2, .tile = kTokens, .stages = 3};
    for (const FewRowsProduct& product : {first, second, third, second, third})
      EXPECT_TRUE(IsOk(few_rows_.Multiply(product, plan, *stream_)));
    return hidden.Read(*stream_);
  };
  for (const int splits : {1, 4}) {
    const std::vector<float> expected = run(false, splits);
    OnEverySchedule([&] { EXPECT_TRUE(SameBits(run(true, splits), expected)); });
#if defined(DIFFSERVE_CUDA_ON_CPU)
    for (const int major : {8, 9, 10}) {
      SimulateComputeCapability(major);
      device_ = cuda::OpenDevice(0).value();
      few_rows_ = FewRows::Create(device_, size_t{4} << 20, *stream_).value();
      shim::CountEarlyKernels();
      EXPECT_TRUE(SameBits(run(true, splits), expected));
      EXPECT_EQ(shim::early_kernels, major >= 9 ? 4 : 0) << "compute capability " << major;
    }
#endif
  }
}

TEST_F(FewRowsTest, TokensThatDoNotFitAtOnceAreComputedInParts) {
  constexpr int kIn = 16392, kTokens = 6;
  const Case of{.out_features = 8, .in_features = kIn};
  const std::vector<float> x = RandomBFloat16s(kTokens, kIn, 17);
  const std::vector<float> expected = Run<float>(of, x);
  device_.shared_memory_bytes_max = 99 << 10;
  device_.num_sms = 4;
  few_rows_ = FewRows::Create(device_, 4096, *stream_).value();
  const auto plan_of = [&](int num_tokens) {
    return cuda::PlanFewRows({.in_features = kIn, .out_features = 8, .num_tokens = num_tokens},
                             few_rows_.limits());
  };
  EXPECT_FALSE(plan_of(kTokens).ok());
  EXPECT_TRUE(plan_of(1).ok());
  EXPECT_TRUE(SameBits(Run<float>(of, x), expected));
}

class FewRowsPlanTest : public ::testing::Test {
 protected:
  static FewRowsPlan Plan(int out, int in, int tokens, int num_sms = 132,
                          size_t shared_bytes = 227 << 10) {
    return cuda::PlanFewRows({.in_features = in, .out_features = out, .num_tokens = tokens},
                             {num_sms, shared_bytes, size_t{128} << 20})
        .value();
  }
};

TEST_F(FewRowsPlanTest, OneTokenIsNotSplit) {
  const FewRowsPlan plan = Plan(9216, 3072, 1);
  EXPECT_EQ(plan.splits, 1);
  EXPECT_EQ(plan.columns, 132);
  EXPECT_EQ(plan.stages, 3);
}

TEST_F(FewRowsPlanTest, ManyTokensShareInFeatures) {
  EXPECT_GT(Plan(9216, 3072, 64).splits, 2);
  EXPECT_EQ(Plan(9216, 3072, 64).tile, 64);
}

TEST_F(FewRowsPlanTest, EveryShapeFitsEveryDevice) {
  for (const auto& [sms, shared] : {std::pair{132, 227}, {108, 163}, {170, 99}, {4, 99}}) {
    for (const auto& [out, in] : {std::pair{9216, 3072},
                                  {3072, 8192},
                                  {4096, 16384},
                                  {192, 5120},
                                  {5120, 160},
                                  {219520, 2048}}) {
      for (const int tokens : {1, 4, 8, 16, 64}) {
        const FewRowsProduct product = {
            .in_features = in, .out_features = out, .num_tokens = tokens};
        const cuda::FewRowsLimits limits = {sms, static_cast<size_t>(shared) << 10,
                                            size_t{64} << 20};
        const Result<FewRowsPlan> plan = cuda::PlanFewRows(product, limits);
        ASSERT_TRUE(plan.ok()) << out << " x " << in << ", " << tokens << " tokens";
        EXPECT_LE(plan->SharedBytes(product), limits.shared_bytes_max);
        EXPECT_LE(plan->PartialBytes(product), limits.partial_bytes);
        EXPECT_LE(plan->NumCounters(product), cuda::kFewRowsCounters);
      }
    }
  }
}

TEST_F(FewRowsPlanTest, XThatDoesNotFitIsRefused) {
  const auto plan = cuda::PlanFewRows({.in_features = 1 << 20, .out_features = 8, .num_tokens = 1},
                                      {4, 99 << 10, 0});
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.status().message(), ::testing::HasSubstr("1048576 input features"));
}

}  // namespace
}  // namespace diffserve
