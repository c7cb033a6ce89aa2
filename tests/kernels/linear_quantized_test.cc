// SPDX-License-Identifier: Apache-2.0
// Linear layers with int8 and int4 weights. Results match their definition, computed in double
// precision from the codes of weights and activations. They have the same bits at every level and
// for every number of tokens.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/ops/linear.h"
#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_packer.h"
#include "tests/testing/kernels/kept_weights.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve {
namespace {

using testing::AllClose;
using testing::KeptWeights;
using testing::KernelLevels;
using testing::KernelOp;
using testing::RandomFloats;
using testing::SameBits;
using testing::StoredTensor;
using testing::ToleranceOf;

struct Shape {
  int out_features;
  int in_features;
};

size_t Elements(int rows, int columns) {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns);
}

class LinearQuantizedTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  Result<cpu::PackedLinear> Pack(const LinearPart& part, CpuIsa isa) {
    cpu::WeightPacker packer(WeightFormat::kFloat32, GetParam(), isa, pool_);
    cpu::PackedLinear packed = packer.Linear(std::span(&part, 1));
    if (!packer.status().ok()) return packer.status();
    return packed;
  }
  std::vector<float> Run(const cpu::PackedLinear& weight, std::span<const float> x,
                         std::vector<float> y = {}) {
    const int num_tokens = static_cast<int>(x.size()) / weight.in_features();
    const bool accumulate = !y.empty();
    y.resize(Elements(num_tokens, weight.out_features()));
    cpu::Linear(weight,
                {.x = x.data(), .num_tokens = num_tokens, .y = y.data(), .accumulate = accumulate},
                pool_);
    return y;
  }
  std::vector<float> Product(const std::vector<float>& w, Shape shape, std::span<const float> x,
                             CpuIsa isa) {
    const StoredTensor weight(w, {shape.out_features, shape.in_features});
    const LinearPart part{.weight = weight.view(), .row_order = {}, .bias = {}};
    const auto packed = Pack(part, isa);
    EXPECT_TRUE(packed.ok()) << packed.status().message();
    return packed.ok() ? Run(*packed, x) : std::vector<float>();
  }

  // Checks that column `at` of the panels holds `row`, followed by zeros.
  void ExpectColumn(const cpu::PackedLinear& packed, int columns, int at, std::vector<float> row) {
    const auto* panel = static_cast<const uint8_t*>(packed.panels()) +
                        at / columns * packed.panel_bytes();
    const int column = at % columns;
    row.resize(static_cast<size_t>(NumQuantGroups(packed.in_features()) * kQuantGroup), 0.0f);
    const float row_scale = Int8WeightCodec::ScaleOf(row);
    if (GetParam() == WeightFormat::kInt8) {
      ASSERT_EQ(packed.scale()[at], row_scale);
    }
    for (size_t begin = 0; begin < row.size(); begin += kQuantGroup) {
      const auto group = std::span(row).subspan(begin, kQuantGroup);
      const auto index = static_cast<int64_t>(begin / kQuantGroup);
      if (GetParam() == WeightFormat::kInt8) {
        const uint8_t* codes = panel + index * Int8Panel::GroupBytes(columns);
        for (int i = 0; i < kQuantGroup; ++i) {
          ASSERT_EQ(codes[Int8Panel::CodeAt(columns, column, i)],
                    Int8WeightCodec::Encode(group[static_cast<size_t>(i)], row_scale));
        }
        continue;
      }
      const uint8_t* codes = panel + index * Int4Panel::GroupBytes(columns);
      uint16_t scale = 0;
      std::memcpy(&scale, codes + Int4Panel::ScalesAt(columns) + 2 * column, sizeof(scale));
      ASSERT_EQ(scale, Int4WeightCodec::ScaleOf(group));
      for (int i = 0; i < kQuantGroup; ++i) {
        const int code = codes[Int4Panel::CodeAt(columns, column, i)] >> Int4Panel::CodeShift(i);
        ASSERT_EQ(code & 15, Int4WeightCodec::Encode(group[static_cast<size_t>(i)], scale));
      }
    }
  }
  // Activations as the int8 codes of groups keep them.
  static std::vector<float> Quantized(std::span<const float> row) {
    std::vector<float> kept;
    for (size_t begin = 0; begin < row.size(); begin += kQuantGroup) {
      const auto group = row.subspan(begin, std::min<size_t>(kQuantGroup, row.size() - begin));
      float largest = 0;
      for (float value : group) largest = std::max(largest, std::abs(value));
      const float inverse = largest == 0 ? 0 : 127.0f / largest;
      for (float value : group) kept.push_back(std::nearbyint(value * inverse) * (largest / 127));
    }
    return kept;
  }
  std::vector<float> Reference(std::span<const float> w, Shape shape,
                               std::span<const float> x) const {
    const auto out = static_cast<size_t>(shape.out_features),
               in = static_cast<size_t>(shape.in_features);
    const size_t num_tokens = x.size() / in;
    std::vector<float> y(num_tokens * out);
    for (size_t token = 0; token < num_tokens; ++token) {
      const std::vector<float> codes = Quantized(x.subspan(token * in, in));
      for (size_t feature = 0; feature < out; ++feature) {
        const std::vector<float> weights = KeptWeights(GetParam(), w.subspan(feature * in, in));
        double sum = 0;
        for (size_t i = 0; i < in; ++i) sum += static_cast<double>(weights[i]) * codes[i];
        y[token * out + feature] = static_cast<float>(sum);
      }
    }
    return y;
  }

  ThreadPool pool_{{.num_threads = 3, .pin = false}};
};

// Rows with scales and roundings at an edge: equal magnitudes of both signs, in both orders; halves
// of a step; zeros of both signs; the smallest numbers; and those that vanish beside the largest.
std::vector<float> EdgeRows(int rows, int in_features) {
  std::vector<float> w = RandomFloats(Elements(rows, in_features), 18);
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < in_features; ++i) {
      float& value =
          w[static_cast<size_t>(row) * static_cast<size_t>(in_features) + static_cast<size_t>(i)];
      const float sign = i % 2 == 0 ? 1.0f : -1.0f, half = static_cast<float>(i % 33 - 16) / 2;
      switch (row % 9) {
        case 1:
          value = sign;
          break;
        case 2:
          value = -sign;
          break;
        case 3:
          value = half;
          break;
        case 4:
          value = i % 3 == 0 ? 0.0f : -0.0f;
          break;
        case 5:
          value *= 0x1p-140f;
          break;
        case 6:
          value *= 0x1p-20f;
          break;
        case 7:
          value = i % 64 == 63 ? -60000.0f : value;
          break;
        case 8:
          value = -std::abs(value);
          break;
        default:
          break;
      }
    }
  }
  return w;
}

TEST_P(LinearQuantizedTest, CodesAndScalesEqualTheDefinitionAtEveryLevel) {
  for (const Shape shape : {Shape{1, 1}, Shape{40, 63}, Shape{33, 64}, Shape{70, 700}}) {
    const std::vector<float> values = EdgeRows(shape.out_features, shape.in_features);
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      const StoredTensor weight(values, {shape.out_features, shape.in_features}, dtype);
      LinearPart part{.weight = weight.view(), .row_order = {}, .bias = {}};
      for (int32_t row = shape.out_features; row-- > 0;) part.row_order.push_back(row);
      for (CpuIsa isa : KernelLevels()) {
        const auto packed = Pack(part, isa);
        ASSERT_TRUE(packed.ok()) << packed.status().message();
        const int columns = cpu::PanelColumns(isa);
        for (int at = 0; at < (shape.out_features + columns - 1) / columns * columns; ++at) {
          std::vector<float> row(static_cast<size_t>(shape.in_features), 0.0f);
          if (at < shape.out_features) {
            CopyToFloat(part.weight, (shape.out_features - 1 - at) * int64_t{shape.in_features},
                        shape.in_features, row.data());
          }
          ExpectColumn(*packed, columns, at, row);
          if (HasFailure()) FAIL() << NameOf(isa) << " " << NameOf(dtype) << " column " << at;
        }
      }
    }
  }
}

TEST_P(LinearQuantizedTest, OddShapesMatchTheDefinitionWithTheSameBitsAtEveryLevel) {
  for (const Shape shape : {Shape{1, 1}, Shape{5, 63}, Shape{17, 64}, Shape{33, 65}, Shape{70, 257},
                            Shape{97, 300}, Shape{130, 13}}) {
    const auto w = RandomFloats(Elements(shape.out_features, shape.in_features), 3);
    for (int num_tokens : {1, 2, 3, 4, 5, 7, 13, 40}) {
      const auto x = RandomFloats(Elements(num_tokens, shape.in_features), 4);
      const std::vector<float> expected = Reference(w, shape, x);
      const std::vector<float> first = Product(w, shape, x, KernelLevels().front());
      for (CpuIsa isa : KernelLevels()) {
        const std::vector<float> y = Product(w, shape, x, isa);
        ASSERT_TRUE(AllClose(y, expected, ToleranceOf(KernelOp::kLinear, DType::kFloat32)))
            << num_tokens << " x " << shape.in_features << " x " << shape.out_features << ", "
            << NameOf(isa);
        ASSERT_TRUE(SameBits(y, first)) << NameOf(isa);
      }
    }
  }
}

// Codes at both ends of the range: no sum of them saturates.
TEST_P(LinearQuantizedTest, LargestCodesAreSummedExactly) {
  constexpr Shape kShape{40, 256};
  const bool is_int8 = GetParam() == WeightFormat::kInt8;
  const float low = is_int8 ? -127 : -8, high = is_int8 ? 127 : 7;
  for (const auto& [even, odd] :
       {std::pair(low, low), std::pair(high, high), std::pair(low, high), std::pair(high, low)}) {
    std::vector<float> w(Elements(kShape.out_features, kShape.in_features));
    // The first number of each group is the lowest, which makes the scale 1.
    for (size_t i = 0; i < w.size(); ++i) w[i] = i % 64 == 0 ? low : i % 2 == 0 ? even : odd;
    for (const auto& [even_x, odd_x] :
         {std::pair(127.0f, 127.0f), std::pair(-127.0f, -127.0f), std::pair(127.0f, -127.0f)}) {
      for (int num_tokens : {1, 2, 6, 9}) {
        std::vector<float> x(Elements(num_tokens, kShape.in_features));
        for (size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? even_x : odd_x;
        const std::vector<float> expected = Reference(w, kShape, x);
        for (CpuIsa isa : KernelLevels())
          ASSERT_EQ(Product(w, kShape, x, isa), expected) << NameOf(isa) << " " << num_tokens;
      }
    }
  }
}

TEST_P(LinearQuantizedTest, TokenIsBitwiseIndependentOfBatch) {
  constexpr Shape kShape{150, 200};
  const StoredTensor weight(RandomFloats(Elements(kShape.out_features, kShape.in_features), 5),
                            {kShape.out_features, kShape.in_features});
  const StoredTensor bias(RandomFloats(static_cast<size_t>(kShape.out_features), 6),
                          {kShape.out_features});
  const LinearPart part{.weight = weight.view(), .row_order = {}, .bias = bias.view()};
  const auto x = RandomFloats(Elements(200, kShape.in_features), 7);
  for (CpuIsa isa : KernelLevels()) {
    const auto packed = Pack(part, isa);
    ASSERT_TRUE(packed.ok());
    for (bool accumulate : {false, true}) {
      const auto sums = [&](size_t num_tokens) {
        return std::vector<float>(accumulate ? num_tokens * kShape.out_features : 0, 1.0f);
      };
      std::vector<float> alone;
      for (size_t token = 0; token < 200; ++token) {
        const auto y = Run(*packed, std::span(x).subspan(token * 200, 200), sums(1));
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (size_t num_tokens :
           {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 19, 23, 24, 25, 31, 97, 200}) {
        const auto y = Run(*packed, std::span(x).first(num_tokens * 200), sums(num_tokens));
        ASSERT_TRUE(SameBits(y, std::span(alone).first(y.size())))
            << num_tokens << " tokens, " << NameOf(isa);
      }
    }
  }
}

TEST_P(LinearQuantizedTest, BiasAndResidualAreAddedToTheSum) {
  constexpr Shape kShape{40, 70};
  const StoredTensor weight(RandomFloats(Elements(kShape.out_features, kShape.in_features), 8),
                            {kShape.out_features, kShape.in_features});
  const StoredTensor bias(RandomFloats(40, 9), {40});
  const auto x = RandomFloats(Elements(5, kShape.in_features), 10);
  const auto residual = RandomFloats(Elements(5, kShape.out_features), 11);
  for (CpuIsa isa : KernelLevels()) {
    LinearPart part{.weight = weight.view(), .row_order = {}, .bias = {}};
    std::vector<float> expected = Run(*Pack(part, isa), x);
    part.bias = bias.view();
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] = residual[i] + (expected[i] + part.bias.At(static_cast<int64_t>(i % 40)));
    EXPECT_TRUE(SameBits(Run(*Pack(part, isa), x, residual), expected)) << NameOf(isa);
  }
}

TEST_P(LinearQuantizedTest, NonFiniteValueStaysWithItsToken) {
  constexpr Shape kShape{40, 130};
  const auto w = RandomFloats(Elements(kShape.out_features, kShape.in_features), 12);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    for (int num_tokens : {3, 30}) {
      auto x = RandomFloats(Elements(num_tokens, kShape.in_features), 13);
      for (CpuIsa isa : KernelLevels()) {
        const std::vector<float> clean = Product(w, kShape, x, isa);
        std::vector<float> poisoned = x;
        poisoned[130 + 70] = bad;
        const std::vector<float> y = Product(w, kShape, poisoned, isa);
        for (size_t i = 0; i < y.size(); ++i) {
          if (i / 40 == 1) {
            ASSERT_FALSE(std::isfinite(y[i])) << NameOf(isa);
          } else {
            ASSERT_EQ(y[i], clean[i]) << NameOf(isa);
          }
        }
      }
    }
  }
}

TEST_P(LinearQuantizedTest, ZerosAndTheSmallestNumbersGiveZeros) {
  constexpr Shape kShape{20, 128};
  const size_t count = Elements(kShape.out_features, kShape.in_features);
  const auto w = RandomFloats(count, 14);
  for (CpuIsa isa : KernelLevels()) {
    const std::vector<float> zeros(20, 0.0f);
    EXPECT_EQ(Product(std::vector<float>(count), kShape, RandomFloats(128, 15), isa), zeros);
    EXPECT_EQ(Product(w, kShape, std::vector<float>(128, 0.0f), isa), zeros);
    EXPECT_EQ(Product(w, kShape, std::vector<float>(128, 1e-40f), isa), zeros);
  }
}

TEST_P(LinearQuantizedTest, WeightBeyondTheFormatIsRefusedByName) {
  std::vector<float> values(64 * 4, 0.5f);
  values[64 * 2 + 7] = std::numeric_limits<float>::infinity();
  StoredTensor weight(values, {4, 64});
  TensorView view = weight.view();
  view.name = "layer.weight";
  const LinearPart part{.weight = view, .row_order = {}, .bias = {}};
  const auto packed = Pack(part, testing::EightLanes());
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.status().message().substr(0, 46),
            "layer.weight: element [2, 7] is inf; allowed: ")
      << packed.status().message();
}

// Uniform numbers: int8 has steps of 1/127 of the largest, int4 of 1/8.
TEST_P(LinearQuantizedTest, ErrorMatchesTheStepSize) {
  constexpr Shape kShape{64, 512};
  const auto w = RandomFloats(Elements(kShape.out_features, kShape.in_features), 16);
  const auto x = RandomFloats(512, 17);
  const std::vector<float> y = Product(w, kShape, x, testing::EightLanes());
  double error = 0, size = 0;
  for (size_t feature = 0; feature < y.size(); ++feature) {
    double sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += static_cast<double>(w[feature * 512 + i]) * x[i];
    error += (y[feature] - sum) * (y[feature] - sum);
    size += sum * sum;
  }
  const double relative = std::sqrt(error / size);
  EXPECT_LT(relative, GetParam() == WeightFormat::kInt8 ? 0.01 : 0.1);
  EXPECT_GT(relative, GetParam() == WeightFormat::kInt8 ? 0.002 : 0.03);
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearQuantizedTest, ::testing::ValuesIn(kQuantizedFormats),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace diffserve
