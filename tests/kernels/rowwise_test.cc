// RmsNorm, SiLU, PolyNorm, sigmoid and embedding at every level.
#include "kernels/ops/rowwise.h"

#include <cmath>
#include <limits>

#include "tests/testing/kernel_levels.h"

namespace diffserve {
namespace {

using testing::AllClose;
using testing::KernelLevels;
using testing::KernelOp;
using testing::RandomFloats;
using testing::SameBits;
using testing::Tolerance;
using testing::ToleranceOf;

TEST(RmsNormTest, AnyWidthMatchesTheReference) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  for (CpuIsa isa : KernelLevels()) {
    for (int width : {1, 2, 7, 8, 15, 16, 17, 31, 64, 65, 100, 1536, 4096}) {
      constexpr int kRows = 5;
      const std::vector<float> x = RandomFloats(static_cast<size_t>(kRows * width), 1, -3, 3);
      const std::vector<float> weight = RandomFloats(static_cast<size_t>(width), 2, 0.5f, 1.5f);
      std::vector<float> out(x.size());
      std::vector<float> expected(x.size());
      RmsNormArgs args{.x = x.data(),
                       .weight = weight.data(),
                       .out = expected.data(),
                       .rows = kRows,
                       .width = width,
                       .eps = 1e-5f};
      RmsNormRef(args);
      args.out = out.data();
      cpu::RmsNorm(args, isa, pool);
      EXPECT_TRUE(AllClose(out, expected, ToleranceOf(KernelOp::kRmsNorm, DType::kFloat32, isa)))
          << width << " " << NameOf(isa);
    }
  }
}

TEST(RmsNormTest, InPlaceAndInAnyBatchGivesTheSameBits) {
  constexpr int kRows = 37;
  constexpr int kWidth = 1031;
  ThreadPool one({.num_threads = 1});
  ThreadPool three({.num_threads = 3, .pin = false});
  const std::vector<float> x = RandomFloats(static_cast<size_t>(kRows) * kWidth, 3);
  const std::vector<float> weight = RandomFloats(kWidth, 4);
  for (CpuIsa isa : KernelLevels()) {
    std::vector<float> together(x.size());
    cpu::RmsNorm({.x = x.data(),
                  .weight = weight.data(),
                  .out = together.data(),
                  .rows = kRows,
                  .width = kWidth,
                  .eps = 1e-6f},
                 isa, three);
    std::vector<float> alone = x;
    for (int row = 0; row < kRows; ++row) {
      float* at = alone.data() + static_cast<size_t>(row) * kWidth;
      cpu::RmsNorm(
          {.x = at, .weight = weight.data(), .out = at, .rows = 1, .width = kWidth, .eps = 1e-6f},
          isa, one);
    }
    EXPECT_TRUE(SameBits(alone, together)) << NameOf(isa);
  }
}

TEST(SiluMulTest, TheWholeRangeMatchesTheReference) {
  // gate sweeps -120 .. 120, so exp is tried from its underflow to its overflow.
  ThreadPool pool({.num_threads = 2, .pin = false});
  constexpr int kWidth = 24001;
  std::vector<float> x(2 * kWidth);
  for (int i = 0; i < kWidth; ++i)
    x[static_cast<size_t>(i)] = -120.0f + 0.01f * static_cast<float>(i);
  const std::vector<float> up = RandomFloats(kWidth, 5, 0.5f, 2.0f);
  std::copy(up.begin(), up.end(), x.begin() + kWidth);
  std::vector<float> expected(kWidth);
  SiluMulRef({.x = x.data(), .out = expected.data(), .rows = 1, .width = kWidth});
  for (CpuIsa isa : KernelLevels()) {
    std::vector<float> out(kWidth);
    cpu::SiluMul({.x = x.data(), .out = out.data(), .rows = 1, .width = kWidth}, isa, pool);
    EXPECT_TRUE(AllClose(out, expected, ToleranceOf(KernelOp::kSiluMul, DType::kFloat32, isa)))
        << NameOf(isa);
  }
}

TEST(SiluMulTest, ExtremesKeepTheirMeaning) {
  ThreadPool pool({.num_threads = 1});
  const float infinity = std::numeric_limits<float>::infinity();
  const float x[] = {-1e38f, 0.0f, 1e38f, std::numeric_limits<float>::quiet_NaN(), infinity, 1, 1,
                     1,      1,    1};
  for (CpuIsa isa : KernelLevels()) {
    float out[5];
    cpu::SiluMul({.x = x, .out = out, .rows = 1, .width = 5}, isa, pool);
    EXPECT_EQ(out[0], 0.0f) << NameOf(isa);
    EXPECT_EQ(out[1], 0.0f);
    EXPECT_EQ(out[2], 1e38f);
    EXPECT_TRUE(std::isnan(out[3]));
    EXPECT_EQ(out[4], infinity);
  }
}

TEST(SiluMulTest, InAnyBatchGivesTheSameBits) {
  constexpr int kRows = 41;
  constexpr int kWidth = 517;
  ThreadPool one({.num_threads = 1});
  ThreadPool three({.num_threads = 3, .pin = false});
  const std::vector<float> x = RandomFloats(2 * static_cast<size_t>(kRows) * kWidth, 6, -8, 8);
  for (CpuIsa isa : KernelLevels()) {
    std::vector<float> together(static_cast<size_t>(kRows) * kWidth);
    std::vector<float> alone(together.size());
    cpu::SiluMul({.x = x.data(), .out = together.data(), .rows = kRows, .width = kWidth}, isa,
                 three);
    for (size_t row = 0; row < kRows; ++row) {
      cpu::SiluMul({.x = x.data() + row * 2 * kWidth,
                    .out = alone.data() + row * kWidth,
                    .rows = 1,
                    .width = kWidth},
                   isa, one);
    }
    EXPECT_TRUE(SameBits(alone, together)) << NameOf(isa);
  }
}

TEST(PolyNormMulTest, AnyWidthMatchesTheReference) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  constexpr int kRows = 5;
  for (CpuIsa isa : KernelLevels()) {
    for (int width : {1, 3, 7, 8, 16, 17, 33, 100, 1031, 8192}) {
      for (float spread : {0.05f, 1.0f, 30.0f}) {  // small enough that eps counts, and large enough
                                                   // that z^6 is 7e8
        const std::vector<float> x = RandomFloats(2 * static_cast<size_t>(kRows * width), 7,
                                                  -spread, spread);
        std::vector<float> out(static_cast<size_t>(kRows * width));
        std::vector<float> expected(out.size());
        PolyNormMulArgs args{.x = x.data(),
                             .out = expected.data(),
                             .rows = kRows,
                             .width = width,
                             .weight = {0.4f, -0.3f, 0.7f},
                             .bias = 0.1f};
        PolyNormMulRef(args);
        args.out = out.data();
        cpu::PolyNormMul(args, isa, pool);
        Tolerance tolerance = ToleranceOf(KernelOp::kPolyNormMul, DType::kFloat32, isa);
        tolerance.absolute *= spread;  // of `up`
        EXPECT_TRUE(AllClose(out, expected, tolerance))
            << width << " " << spread << " " << NameOf(isa);
      }
    }
  }
}

// With one weight alone the result's scale does not depend on that of the gate: n(u) has a mean
// square of 1.
TEST(PolyNormMulTest, EachTermIsNormalisedOverItsRow) {
  ThreadPool pool({.num_threads = 1});
  constexpr int kWidth = 300;
  std::vector<float> x = RandomFloats(2 * kWidth, 8, -2, 2);
  std::fill(x.begin() + kWidth, x.end(), 1.0f);
  for (CpuIsa isa : KernelLevels()) {
    for (int term = 0; term < 3; ++term) {
      PolyNormMulArgs args{.x = x.data(), .rows = 1, .width = kWidth};
      args.weight[term] = 1;
      std::vector<float> out(kWidth);
      args.out = out.data();
      cpu::PolyNormMul(args, isa, pool);
      double squares = 0;
      for (float value : out) squares += static_cast<double>(value) * static_cast<double>(value);
      EXPECT_NEAR(squares / kWidth, 1.0, 1e-5) << term << " " << NameOf(isa);
      const float power = static_cast<float>(3 - term);
      EXPECT_NEAR(out[0] / out[1], std::pow(x[0], power) / std::pow(x[1], power),
                  1e-4 * std::abs(out[0] / out[1]))
          << term;
    }
  }
}

TEST(PolyNormMulTest, InAnyBatchGivesTheSameBits) {
  constexpr int kRows = 41;
  constexpr int kWidth = 517;
  ThreadPool one({.num_threads = 1});
  ThreadPool three({.num_threads = 3, .pin = false});
  const std::vector<float> x = RandomFloats(2 * static_cast<size_t>(kRows) * kWidth, 9, -4, 4);
  for (CpuIsa isa : KernelLevels()) {
    std::vector<float> together(static_cast<size_t>(kRows) * kWidth);
    std::vector<float> alone(together.size());
    PolyNormMulArgs args{.x = x.data(),
                         .out = together.data(),
                         .rows = kRows,
                         .width = kWidth,
                         .weight = {0.3f, 0.3f, 0.4f}};
    cpu::PolyNormMul(args, isa, three);
    args.rows = 1;
    for (size_t row = 0; row < kRows; ++row) {
      args.x = x.data() + row * 2 * kWidth;
      args.out = alone.data() + row * kWidth;
      cpu::PolyNormMul(args, isa, one);
    }
    EXPECT_TRUE(SameBits(alone, together)) << NameOf(isa);
  }
}

TEST(SigmoidTest, TheWholeRangeMatchesTheReferenceAtAnyOffset) {
  std::vector<float> x(24001);
  for (size_t i = 0; i < x.size(); ++i) x[i] = -120.0f + 0.01f * static_cast<float>(i);
  std::vector<float> expected = x;
  SigmoidRef(expected);
  for (CpuIsa isa : KernelLevels()) {
    std::vector<float> out = x;
    cpu::Sigmoid(out, isa);
    EXPECT_TRUE(AllClose(out, expected, ToleranceOf(KernelOp::kSigmoid, DType::kFloat32, isa)))
        << NameOf(isa);
    std::vector<float> shifted(x.begin() + 5, x.end());
    cpu::Sigmoid(shifted, isa);
    EXPECT_TRUE(SameBits(shifted, {out.begin() + 5, out.end()})) << NameOf(isa);
  }
}

TEST(EmbeddingLookupTest, EveryDtypeIsConvertedRowByRow) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  const float floats[] = {0, 1, 2, 3, 4, 5};
  const uint16_t bfloats[] = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0};
  const uint16_t halves[] = {0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500};
  for (const TensorView& table :
       {TensorView{floats, DType::kFloat32, {3, 2}}, TensorView{bfloats, DType::kBFloat16, {3, 2}},
        TensorView{halves, DType::kFloat16, {3, 2}}}) {
    for (int repeat : {1, 20}) {
      std::vector<int32_t> tokens;
      std::vector<float> expected;
      for (int i = 0; i < repeat; ++i) {
        tokens.insert(tokens.end(), {2, 0, 2});
        expected.insert(expected.end(), {4, 5, 0, 1, 4, 5});
      }
      std::vector<float> out(expected.size());
      cpu::EmbeddingLookup(table, tokens, out.data(), pool);
      EXPECT_EQ(out, expected) << NameOf(table.dtype);
    }
  }
}

TEST(EmbeddingLookupDeathTest, ATokenOutsideTheVocabularyIsABug) {
  ThreadPool pool({.num_threads = 1});
  const float floats[] = {0, 1};
  float out[1];
  const std::vector<int32_t> tokens = {2};
  EXPECT_DEATH(cpu::EmbeddingLookup({floats, DType::kFloat32, {2, 1}}, tokens, out, pool),
               "outside the vocabulary");
}

}  // namespace
}  // namespace diffserve
