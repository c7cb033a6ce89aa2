// Linear layers at every level: against the double-precision reference, exact on integers, and the
// same bits for every row count.
#include "kernels/ops/linear.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/testing/kernel_levels.h"

namespace diffserve {
namespace {

using testing::AllClose;
using testing::KernelLevels;
using testing::KernelOp;
using testing::RandomFloats;
using testing::SameBits;
using testing::ToleranceOf;

// A checkpoint tensor that owns its memory.
class Tensor {
 public:
  Tensor(std::vector<float> values, std::vector<int64_t> shape, DType dtype = DType::kFloat32)
      : floats_(std::move(values)) {
    view_ = {.data = floats_.data(), .dtype = dtype, .shape = std::move(shape)};
    if (dtype == DType::kFloat32) return;
    for (float value : floats_)
      halves_.push_back(dtype == DType::kBFloat16 ? FloatToBFloat16(value) : ToFloat16(value));
    view_.data = halves_.data();
  }
  const TensorView& view() const { return view_; }

 private:
  // Truncating; for normal numbers.
  static uint16_t ToFloat16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits >> 16 & 0x8000u) | ((bits >> 23 & 0xffu) - 112u) << 10 |
                                 (bits >> 13 & 0x3ffu));
  }
  std::vector<float> floats_;
  std::vector<uint16_t> halves_;
  TensorView view_;
};

Tensor RandomTensor(int64_t rows, int64_t columns, uint32_t seed, DType dtype = DType::kFloat32) {
  std::vector<float> values = RandomFloats(static_cast<size_t>(rows * columns), seed);
  // Away from zero, so that float16 has no subnormals to deal with.
  for (float& value : values) value += value < 0 ? -0.01f : 0.01f;
  return Tensor(std::move(values), {rows, columns}, dtype);
}

std::vector<float> Apply(const PackedLinear& packed, const std::vector<float>& x, int rows,
                         ThreadPool& pool) {
  std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(packed.out_features()),
                       -77.0f);
  cpu::Linear(packed, {.x = x.data(), .rows = rows, .y = y.data()}, pool);
  return y;
}

TEST(LinearTest, OddShapesMatchTheReference) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  const std::pair<int, int> shapes[] = {{1, 1},    {1, 7},    {5, 2},    {16, 16},  {17, 33},
                                        {31, 255}, {64, 256}, {70, 257}, {97, 300}, {530, 13}};
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (CpuIsa isa : KernelLevels()) {
      for (auto [out_features, in_features] : shapes) {
        const Tensor weight = RandomTensor(out_features, in_features, 3, dtype);
        const LinearPart part{.weight = weight.view(), .row_order = {}, .bias = {}};
        const PackedLinear packed({&part, 1}, dtype, isa, pool);
        for (int rows : {1, 2, 3, 5, 6, 7, 13, 25, 40}) {
          const std::vector<float> x = RandomFloats(static_cast<size_t>(rows * in_features), 4);
          std::vector<float> expected(static_cast<size_t>(rows * out_features));
          LinearRef({&part, 1}, {.x = x.data(), .rows = rows, .y = expected.data()});
          ASSERT_TRUE(AllClose(Apply(packed, x, rows, pool), expected,
                               ToleranceOf(KernelOp::kLinear, dtype, isa)))
              << rows << " x " << in_features << " x " << out_features << ", " << NameOf(dtype)
              << ", " << NameOf(isa);
        }
      }
    }
  }
}

TEST(LinearTest, StackedPartsKeepTheirOrderBiasAndResidual) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  constexpr int kIn = 37;
  const Tensor first = RandomTensor(20, kIn, 5, DType::kFloat16);
  const Tensor second = RandomTensor(9, kIn, 6, DType::kFloat16);
  const Tensor bias = RandomTensor(9, 1, 7);
  std::vector<int32_t> order(20);
  for (int i = 0; i < 20; ++i) order[static_cast<size_t>(i)] = (i * 7) % 20;
  const LinearPart parts[] = {
      {.weight = first.view(), .row_order = order, .bias = {}},
      {.weight = second.view(), .row_order = {8, 0, 3}, .bias = bias.view()}};
  for (CpuIsa isa : KernelLevels()) {
    const PackedLinear packed(parts, DType::kFloat32, isa, pool);
    ASSERT_EQ(packed.out_features(), 23);
    for (int rows : {1, 4, 30}) {
      for (bool accumulate : {false, true}) {
        constexpr int kStride = 26;
        const std::vector<float> x = RandomFloats(static_cast<size_t>(rows) * kIn, 8);
        std::vector<float> y = RandomFloats(static_cast<size_t>(rows) * kStride, 9);
        std::vector<float> expected = y;
        LinearRef(parts, {.x = x.data(),
                          .rows = rows,
                          .y = expected.data(),
                          .y_stride = kStride,
                          .accumulate = accumulate});
        cpu::Linear(packed,
                    {.x = x.data(),
                     .rows = rows,
                     .y = y.data(),
                     .y_stride = kStride,
                     .accumulate = accumulate},
                    pool);
        EXPECT_TRUE(AllClose(y, expected, ToleranceOf(KernelOp::kLinear, DType::kFloat32, isa)))
            << rows << " " << NameOf(isa);
        for (size_t i = 0; i < y.size(); ++i) {
          const bool is_gap = i % kStride >= 23;
          ASSERT_TRUE(!is_gap || y[i] == expected[i]) << "written beyond a row's end";
        }
      }
    }
  }
}

TEST(LinearTest, FloatSourcesAreRoundedToNearestEvenBFloat16) {
  ThreadPool pool({.num_threads = 1});
  const float halfway_down = 1.0f + 0x1p-8f;          // between 1 and 1 + 2^-7: to the even 1
  const float halfway_up = 1.0f + 0x1p-7f + 0x1p-8f;  // to the even 1 + 2^-6
  const Tensor weight({halfway_down, halfway_up, -halfway_up}, {3, 1});
  const LinearPart part{.weight = weight.view(), .row_order = {}, .bias = {}};
  for (CpuIsa isa : KernelLevels()) {
    const PackedLinear packed({&part, 1}, DType::kBFloat16, isa, pool);
    EXPECT_EQ(Apply(packed, {1.0f}, 1, pool),
              (std::vector<float>{1.0f, 1.0f + 0x1p-6f, -1.0f - 0x1p-6f}));
  }
}

TEST(LinearTest, SmallIntegersAreExact) {
  ThreadPool pool({.num_threads = 1});
  constexpr int kIn = 600;
  constexpr int kOut = 50;
  std::vector<float> values(static_cast<size_t>(kIn) * kOut);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int>(i * 31 % 17) - 8);
  const Tensor weight(values, {kOut, kIn});
  const LinearPart part{.weight = weight.view(), .row_order = {}, .bias = {}};
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (CpuIsa isa : KernelLevels()) {
      const PackedLinear packed({&part, 1}, dtype, isa, pool);
      for (int rows : {1, 6, 20, 200}) {
        std::vector<float> x(static_cast<size_t>(rows) * kIn);
        for (size_t i = 0; i < x.size(); ++i)
          x[i] = static_cast<float>(static_cast<int>(i * 13 % 11) - 5);
        std::vector<float> expected(static_cast<size_t>(rows) * kOut);
        LinearRef({&part, 1}, {.x = x.data(), .rows = rows, .y = expected.data()});
        EXPECT_EQ(Apply(packed, x, rows, pool), expected) << NameOf(isa);
      }
    }
  }
}

TEST(LinearTest, ARowHasTheSameBitsAloneAndInAnyBatchOnAnyNumberOfThreads) {
  constexpr int kMaxRows = 201;  // more than two blocks of 96 rows
  ThreadPool one({.num_threads = 1});
  ThreadPool three({.num_threads = 3, .pin = false});
  struct Shape {
    int out_features;
    int in_features;
    std::vector<int> row_counts;
  };
  // The second shape leaves L2 at 190 rows; then it has two blocks of columns and three of depth.
  const Shape shapes[] = {{83, 70, {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 31, 40, 97, 201}},
                          {555, 519, {2, 7, 25, 190, 201}}};
  for (const Shape& shape : shapes) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (CpuIsa isa : KernelLevels()) {
        const Tensor weight = RandomTensor(shape.out_features, shape.in_features, 11);
        const Tensor bias = RandomTensor(shape.out_features, 1, 12);
        const LinearPart part{.weight = weight.view(), .row_order = {}, .bias = bias.view()};
        const PackedLinear packed({&part, 1}, dtype, isa, one);
        const std::vector<float> x = RandomFloats(
            static_cast<size_t>(kMaxRows) * static_cast<size_t>(shape.in_features), 13);
        std::vector<float> alone;
        for (int row = 0; row < kMaxRows; ++row) {
          const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row) * shape.in_features;
          const std::vector<float> y = Apply(
              packed, std::vector<float>(begin, begin + shape.in_features), 1, one);
          alone.insert(alone.end(), y.begin(), y.end());
        }
        for (int rows : shape.row_counts) {
          for (ThreadPool* pool : {&one, &three}) {
            const std::vector<float> y = Apply(packed, x, rows, *pool);
            ASSERT_TRUE(SameBits(y, std::span(alone).first(y.size())))
                << rows << " rows, " << NameOf(dtype) << ", " << NameOf(isa);
          }
        }
      }
    }
  }
}

TEST(LinearTest, ANanRowStaysInItsOwnRow) {
  ThreadPool pool({.num_threads = 1});
  const Tensor weight = RandomTensor(40, 24, 14);
  const LinearPart part{.weight = weight.view(), .row_order = {}, .bias = {}};
  for (CpuIsa isa : KernelLevels()) {
    const PackedLinear packed({&part, 1}, DType::kFloat32, isa, pool);
    for (int rows : {3, 30}) {
      std::vector<float> x = RandomFloats(static_cast<size_t>(rows) * 24, 15);
      const std::vector<float> clean = Apply(packed, x, rows, pool);
      x[24 + 5] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> y = Apply(packed, x, rows, pool);
      for (size_t i = 0; i < y.size(); ++i) {
        if (i / 40 == 1) {
          ASSERT_TRUE(std::isnan(y[i]));
        } else {
          ASSERT_EQ(y[i], clean[i]);
        }
      }
    }
  }
}

TEST(LinearTest, OutputsBeyondTwoBillionElementsApartAreReached) {
  // Two rows 2^31 + 64 elements apart: 8 GiB of address space, of which a few pages are touched.
  constexpr int64_t kStride = (int64_t{1} << 31) + 64;
  const size_t bytes = static_cast<size_t>(kStride + 8) * sizeof(float);
  ThreadPool pool({.num_threads = 1});
  const Tensor weight({2, 3}, {1, 2});
  const LinearPart part{.weight = weight.view(), .row_order = {}, .bias = {}};
  std::unique_ptr<float, decltype(&std::free)> y(static_cast<float*>(std::malloc(bytes)),
                                                 &std::free);
  if (y == nullptr) GTEST_SKIP() << "this machine does not give 8 GiB of address space";
  for (CpuIsa isa : KernelLevels()) {
    const PackedLinear packed({&part, 1}, DType::kFloat32, isa, pool);
    const float x[] = {1, 1, 10, 1};
    cpu::Linear(packed, {.x = x, .rows = 2, .y = y.get(), .y_stride = kStride}, pool);
    EXPECT_EQ(y.get()[0], 5.0f);
    EXPECT_EQ(y.get()[kStride], 23.0f);
  }
}

}  // namespace
}  // namespace diffserve
