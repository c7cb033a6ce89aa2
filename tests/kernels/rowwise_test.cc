// SPDX-License-Identifier: Apache-2.0
// RmsNorm, LayerNorm, SiLU, PolyNorm and sigmoid on every backend.
#include "kernels/ops/rowwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/testing/kernels/op_backends.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve {
namespace {

using testing::AllClose;
using testing::KernelOp;
using testing::RandomFloats;
using testing::Rounded;
using testing::RowwiseBackend;
using testing::SameBits;
using testing::Tolerance;
using testing::ToleranceOf;

// Whole vectors and a remainder, scalar and 16-byte accesses; less than, exactly and more than one
// round of a thread block.
constexpr int kWidths[] = {1,  2,   3,   7,   8,    15,   16,   17,   31,   33,   64,   65,
                           96, 100, 255, 256, 1000, 1031, 1536, 2047, 2048, 2049, 4096, 6152};
constexpr float kWeight[] = {0.4f, -0.3f, 0.7f};

class RowwiseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backends_.empty()) GTEST_SKIP() << "there is no device";
  }

  // One token's part of a result or an input.
  static std::vector<float> Token(const std::vector<float>& values, int token, int num_tokens) {
    const auto width = static_cast<std::ptrdiff_t>(values.size()) / num_tokens;
    return {values.begin() + token * width, values.begin() + (token + 1) * width};
  }

  const std::vector<RowwiseBackend> backends_ = testing::RowwiseBackends();
};

std::vector<float> RandomOf(DType dtype, int num_tokens, int width, uint32_t seed, float spread) {
  return Rounded(RandomFloats(static_cast<size_t>(num_tokens * width), seed, -spread, spread),
                 dtype);
}

PolyNormMulArgs<float> PolyArgs(const std::vector<float>& x, int num_tokens) {
  const int width = static_cast<int>(x.size()) / (2 * num_tokens);
  return {.x = x.data(),
          .num_tokens = num_tokens,
          .width = width,
          .weight = {kWeight[0], kWeight[1], kWeight[2]},
          .bias = 0.125f};
}

SiluMulArgs<float> SiluArgs(const std::vector<float>& x, int num_tokens) {
  const int width = static_cast<int>(x.size()) / (2 * num_tokens);
  return {.x = x.data(), .num_tokens = num_tokens, .width = width};
}

RmsNormArgs<float> NormArgs(const std::vector<float>& x, const std::vector<float>& weight) {
  const int num_tokens = static_cast<int>(x.size() / weight.size());
  return {.x = x.data(),
          .weight = weight.data(),
          .num_tokens = num_tokens,
          .width = static_cast<int>(weight.size()),
          .eps = 1e-5f};
}

LayerNormArgs<float> LayerNormArgsOf(const std::vector<float>& x, const std::vector<float>& weight,
                                     const std::vector<float>& bias) {
  const int num_tokens = static_cast<int>(x.size() / weight.size());
  return {.x = x.data(),
          .weight = weight.data(),
          .bias = bias.data(),
          .num_tokens = num_tokens,
          .width = static_cast<int>(weight.size()),
          .eps = 1e-5f};
}

// The reference's result.
template <typename Args>
std::vector<float> Reference(Args args, void (*reference)(const Args&)) {
  std::vector<float> out(static_cast<size_t>(args.num_tokens) * static_cast<size_t>(args.width));
  args.out = out.data();
  reference(args);
  return out;
}

TEST_F(RowwiseTest, RmsNormMatchesTheReferenceAtAnyWidth) {
  constexpr int kTokens = 5;
  for (const RowwiseBackend& backend : backends_) {
    for (int width : kWidths) {
      const std::vector<float> x = RandomOf(DType::kFloat32, kTokens, width, 1, 3);
      const std::vector<float> weight = RandomFloats(static_cast<size_t>(width), 2, 0.5f, 1.5f);
      const RmsNormArgs<float> args = NormArgs(x, weight);
      EXPECT_TRUE(AllClose(backend.rms_norm(args, kTokens), Reference(args, RmsNormRef),
                           ToleranceOf(KernelOp::kRmsNorm, backend.activations)))
          << width << " " << backend.name;
    }
  }
}

TEST_F(RowwiseTest, RmsNormReadsTheNamedTokens) {
  constexpr int kTokens = 6, kWidth = 72;
  const std::vector<float> x = RandomOf(DType::kFloat32, kTokens, kWidth, 6, 3);
  const std::vector<float> weight = RandomFloats(kWidth, 7, 0.5f, 1.5f);
  const int32_t indices[] = {5, 0, 3};
  for (const RowwiseBackend& backend : backends_) {
    RmsNormArgs<float> args = NormArgs(x, weight);
    const std::vector<float> all = backend.rms_norm(args, kTokens);
    args.num_tokens = 3;
    args.indices = indices;
    const std::vector<float> named = backend.rms_norm(args, kTokens);
    EXPECT_TRUE(AllClose(named, Reference(args, RmsNormRef),
                         ToleranceOf(KernelOp::kRmsNorm, backend.activations)));
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(SameBits(Token(named, i, 3), Token(all, indices[i], kTokens))) << backend.name;
  }
}

// Around 0, and with a mean that is large compared with the deviations.
TEST_F(RowwiseTest, LayerNormMatchesTheReferenceAtAnyWidth) {
  constexpr int kTokens = 5;
  for (const RowwiseBackend& backend : backends_) {
    for (int width : kWidths) {
      const auto size = static_cast<size_t>(width);
      const std::vector<float> weight = RandomFloats(size, 2, 0.5f, 1.5f),
                               bias = RandomFloats(size, 3);
      for (float offset : {0.0f, 8.0f}) {
        std::vector<float> x = RandomOf(DType::kFloat32, kTokens, width, 1, 3);
        for (float& value : x) value += offset;
        const LayerNormArgs<float> args = LayerNormArgsOf(x, weight, bias);
        Tolerance tolerance = ToleranceOf(KernelOp::kLayerNorm, backend.activations);
        tolerance.absolute *= 1.0 + offset;
        EXPECT_TRUE(
            AllClose(backend.layer_norm(args, kTokens), Reference(args, LayerNormRef), tolerance))
            << width << " " << offset << " " << backend.name;
      }
    }
  }
}

TEST_F(RowwiseTest, LayerNormReadsTheNamedTokens) {
  constexpr int kTokens = 6, kWidth = 72;
  const std::vector<float> x = RandomOf(DType::kFloat32, kTokens, kWidth, 6, 3);
  const std::vector<float> weight = RandomFloats(kWidth, 7, 0.5f, 1.5f),
                           bias = RandomFloats(kWidth, 8);
  const int32_t indices[] = {5, 0, 3};
  for (const RowwiseBackend& backend : backends_) {
    LayerNormArgs<float> args = LayerNormArgsOf(x, weight, bias);
    const std::vector<float> all = backend.layer_norm(args, kTokens);
    args.num_tokens = 3;
    args.indices = indices;
    const std::vector<float> named = backend.layer_norm(args, kTokens);
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(SameBits(Token(named, i, 3), Token(all, indices[i], kTokens))) << backend.name;
  }
}

// A token of equal numbers has no variance, so only the bias is left.
TEST_F(RowwiseTest, LayerNormOfEqualNumbersIsItsBias) {
  const std::vector<float> x(64, 3.0f), weight(64, 2.0f);
  for (const RowwiseBackend& backend : backends_) {
    const std::vector<float> bias = RandomOf(backend.activations, 1, 64, 5, 1);
    EXPECT_TRUE(SameBits(backend.layer_norm(LayerNormArgsOf(x, weight, bias), 1), bias))
        << backend.name;
  }
}

TEST_F(RowwiseTest, SiluMulMatchesTheReferenceAtAnyWidth) {
  constexpr int kTokens = 3;
  for (const RowwiseBackend& backend : backends_) {
    for (int width : kWidths) {
      const std::vector<float> x = RandomOf(backend.activations, kTokens, 2 * width, 10, 20);
      const SiluMulArgs<float> args = SiluArgs(x, kTokens);
      EXPECT_TRUE(AllClose(backend.silu_mul(args), Reference(args, SiluMulRef),
                           ToleranceOf(KernelOp::kSiluMul, backend.activations)))
          << width << " " << backend.name;
    }
  }
}

// exp from its underflow to its overflow, and numbers beyond any range.
TEST_F(RowwiseTest, SiluMulMatchesTheReferenceOverTheWholeRange) {
  constexpr int kWidth = 24001;
  const float infinity = std::numeric_limits<float>::infinity();
  const float extremes[] = {-1e38f, 0.0f, 1e38f, infinity, std::numeric_limits<float>::quiet_NaN()};
  for (const RowwiseBackend& backend : backends_) {
    std::vector<float> x = RandomFloats(2 * kWidth, 5, 0.5f, 1.0f);
    for (int i = 0; i < kWidth; ++i)
      x[static_cast<size_t>(i)] = -120.0f + 0.01f * static_cast<float>(i);
    std::copy(std::begin(extremes), std::end(extremes), x.begin() + 77);
    x = Rounded(x, backend.activations);
    EXPECT_TRUE(AllClose(backend.silu_mul(SiluArgs(x, 1)), Reference(SiluArgs(x, 1), SiluMulRef),
                         ToleranceOf(KernelOp::kSiluMul, backend.activations)))
        << backend.name;
  }
}

// Spreads small enough that eps matters, and large enough that z^6 is 7e8.
TEST_F(RowwiseTest, PolyNormMulMatchesTheReferenceAtAnyWidth) {
  constexpr int kTokens = 3;
  for (const RowwiseBackend& backend : backends_) {
    for (int width : kWidths) {
      for (float spread : {0.05f, 1.0f, 30.0f}) {
        const std::vector<float> x = RandomOf(backend.activations, kTokens, 2 * width, 7, spread);
        const PolyNormMulArgs<float> args = PolyArgs(x, kTokens);
        Tolerance tolerance = ToleranceOf(KernelOp::kPolyNormMul, backend.activations);
        tolerance.absolute *= spread;  // of `up`
        EXPECT_TRUE(
            AllClose(backend.poly_norm_mul(args), Reference(args, PolyNormMulRef), tolerance))
            << width << " " << spread << " " << backend.name;
      }
    }
  }
}

// With a single weight the result's scale does not depend on the gate's scale: n(u) has a mean
// square of 1.
TEST_F(RowwiseTest, EachTermOfPolyNormIsNormalisedOverItsToken) {
  constexpr int kWidth = 300;
  for (const RowwiseBackend& backend : backends_) {
    const bool is_wide = backend.activations == DType::kFloat32;
    std::vector<float> x = RandomOf(backend.activations, 1, 2 * kWidth, 8, 2);
    std::fill(x.begin() + kWidth, x.end(), 1.0f);
    for (int term = 0; term < 3; ++term) {
      PolyNormMulArgs<float> args = {.x = x.data(), .num_tokens = 1, .width = kWidth};
      args.weight[term] = 1;
      double squares = 0;
      for (double value : backend.poly_norm_mul(args)) squares += value * value;
      EXPECT_NEAR(squares / kWidth, 1.0, is_wide ? 1e-5 : 4e-3) << term << " " << backend.name;
    }
  }
}

TEST_F(RowwiseTest, TokenIsBitwiseIndependentOfBatch) {
  constexpr int kTokens = 41, kWidth = 1031;  // enough to wake other threads
  const std::vector<float> weight = RandomFloats(2 * kWidth, 4);
  for (const RowwiseBackend& backend : backends_) {
    const std::vector<float> x = RandomOf(backend.activations, kTokens, 2 * kWidth, 9, 4);
    const std::vector<float> norm = backend.rms_norm(NormArgs(x, weight), kTokens),
                             layer_norm = backend.layer_norm(LayerNormArgsOf(x, weight, weight),
                                                             kTokens),
                             silu = backend.silu_mul(SiluArgs(x, kTokens)),
                             poly = backend.poly_norm_mul(PolyArgs(x, kTokens));
    for (int token = 0; token < kTokens; ++token) {
      const std::vector<float> one = Token(x, token, kTokens);
      EXPECT_TRUE(SameBits(backend.rms_norm(NormArgs(one, weight), 1), Token(norm, token, kTokens)))
          << backend.name;
      EXPECT_TRUE(SameBits(backend.layer_norm(LayerNormArgsOf(one, weight, weight), 1),
                           Token(layer_norm, token, kTokens)))
          << backend.name;
      EXPECT_TRUE(SameBits(backend.silu_mul(SiluArgs(one, 1)), Token(silu, token, kTokens)))
          << backend.name;
      EXPECT_TRUE(SameBits(backend.poly_norm_mul(PolyArgs(one, 1)), Token(poly, token, kTokens)))
          << backend.name;
    }
  }
}

TEST_F(RowwiseTest, SigmoidMatchesTheReferenceOverTheWholeRangeAtAnyOffset) {
  std::vector<float> x(24001);
  for (size_t i = 0; i < x.size(); ++i) x[i] = -120.0f + 0.01f * static_cast<float>(i);
  std::vector<float> expected = x;
  SigmoidRef({expected.data(), static_cast<int64_t>(expected.size())});
  for (const RowwiseBackend& backend : backends_) {
    const std::vector<float> out = backend.sigmoid(x);
    EXPECT_TRUE(AllClose(out, expected, ToleranceOf(KernelOp::kSigmoid, DType::kFloat32)))
        << backend.name;
    EXPECT_TRUE(
        SameBits(backend.sigmoid({x.begin() + 5, x.end() - 1}), {out.begin() + 5, out.end() - 1}))
        << backend.name;
  }
}

TEST_F(RowwiseTest, EmptyBatchIsSkipped) {
  const std::vector<float> weight = RandomFloats(8, 4);
  for (const RowwiseBackend& backend : backends_) {
    EXPECT_TRUE(backend.rms_norm({.weight = weight.data(), .width = 8}, 0).empty());
    EXPECT_TRUE(backend.layer_norm({.weight = weight.data(), .bias = weight.data(), .width = 8}, 0)
                    .empty());
    EXPECT_TRUE(backend.silu_mul({.width = 8}).empty());
    EXPECT_TRUE(backend.poly_norm_mul({.width = 8}).empty());
    EXPECT_TRUE(backend.sigmoid({}).empty());
  }
}

}  // namespace
}  // namespace diffserve
