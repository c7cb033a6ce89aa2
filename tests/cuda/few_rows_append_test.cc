// SPDX-License-Identifier: Apache-2.0
// Few-row products that rotate q and K and append K and V: the bits of the product followed by
// RopeAppend, in q and in every byte of the pages.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/ops/few_rows_cuda.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rope_append.h"
#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_packer_cuda.h"
#include "tests/cuda/attention_on_device.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve {
namespace {

using testing::DeviceArray;
using testing::IsOk;
using testing::RandomFloats;
using testing::Rounded;
using testing::SequenceShape;
using testing::StoredTensor;

// What a layer appends.
struct Case {
  DiffSpec spec;
  RopeStyle style = RopeStyle::kHalfSplit;
  bool has_kv = true;
  bool has_bias = false;
  int in_features = 72;
  int rotated_pairs = 1000;  // of each head; the others have an angle of 0
  WeightFormat format = WeightFormat::kBFloat16;
  std::vector<SequenceShape> shapes = {{0, 1}, {63, 1}, {64, 1}, {130, 3}, {200, 0}, {128, 2}};
  int num_padded = 2;
  int first_row = 0;  // of those that the product computes
  float nan_feature = -1;
  std::vector<int> splits = {};  // empty: the best plan
};

DiffSpec SpecOf(int k_maps, int head_dim, int v_dim) {
  return {.num_q1_heads = 3,
          .num_q2_heads = k_maps == 2 ? 3 : 0,
          .num_kv_groups = 3,
          .k_maps = k_maps,
          .head_dim = head_dim,
          .v_dim = v_dim};
}

// q of all rows, and all pages.
struct Appended {
  std::vector<BFloat16> q;
  std::vector<std::byte> pages;
  bool operator==(const Appended&) const = default;
};

class FewRowsAppendTest : public testing::OnDeviceTest {
 protected:
  void SetUp() override {
    OnDeviceTest::SetUp();
    if (IsSkipped()) return;
    few_rows_ = cuda::FewRows::Create(device_, size_t{4} << 20, *stream_).value();
  }

  // By one kernel and by two.
  std::pair<Appended, Appended> Run(const Case& of) {
    const int width = of.spec.q_width() + (of.has_kv ? of.spec.k_width() + of.spec.v_width() : 0);
    const testing::PagedMemory memory(
        KvFormat::Of(of.spec, cuda::kPageSize, DType::kBFloat16, KvArrangement::kImage), of.shapes);
    const int num_rows = memory.num_tokens() + of.num_padded;
    StoredTensor weight(RandomFloats(static_cast<size_t>(width * of.in_features), 3),
                        {width, of.in_features});
    std::vector<float> bias_values = Rounded(RandomFloats(static_cast<size_t>(width), 4),
                                             DType::kBFloat16);
    if (of.nan_feature >= 0)
      bias_values[static_cast<size_t>(of.nan_feature)] = std::numeric_limits<float>::quiet_NaN();
    const StoredTensor bias(bias_values, {width});
    LinearPart part = {.weight = weight.view(), .row_order = {}, .bias = {}};
    if (of.has_bias) part.bias = bias.view();
    ThreadPool pool({.num_threads = 1, .pin = false, .spin_us = 0});
    cuda::WeightPacker packer(*stream_, of.format, SupportedCpuIsas().front(), pool);
    const cuda::PackedLinear packed = packer.Linear({&part, 1}, LinearOutput::kActivation);
    EXPECT_TRUE(packer.status().ok());

    std::vector<double> inv_freq;
    for (int i = 0; i < of.spec.head_dim / 2; ++i)
      inv_freq.push_back(i < of.rotated_pairs ? std::pow(100.0, -2.0 * i / of.spec.head_dim) : 0);
    const RopeTable table(inv_freq, 512, 1.0);
    RopeAngles angles = table.angles();
    const size_t count = static_cast<size_t>(angles.num_positions * angles.half_dim);
    const DeviceArray<float> cos(std::vector<float>(angles.cos, angles.cos + count), *stream_),
        sin(std::vector<float>(angles.sin, angles.sin + count), *stream_);
    angles.cos = cos.data();
    angles.sin = sin.data();
    const DeviceArray<BFloat16> x(
        testing::ToBFloat16(RandomFloats(static_cast<size_t>(num_rows * of.in_features), 5)),
        *stream_);
    const auto run = [&](bool is_fused) {
      const testing::DevicePages pages(memory, *stream_, {.num_padded = of.num_padded});
      const DeviceArray<BFloat16> qkv(std::vector<BFloat16>(static_cast<size_t>(num_rows * width)),
                                      *stream_);
      const DeviceArray<BFloat16> q(
          std::vector<BFloat16>(static_cast<size_t>(num_rows * of.spec.q_width()), 0x4e4e),
          *stream_);
      RopeAppendArgs<BFloat16> append = {.spec = of.spec,
                                         .batch = pages.Batch(),
                                         .kv = pages.kv(),
                                         .rope = angles,
                                         .style = of.style,
                                         .has_kv = of.has_kv,
                                         .first_row = of.first_row,
                                         .qkv = qkv.data(),
                                         .q = q.data()};
      if (is_fused) {
        Fused(of, packed, x.data(), num_rows, append);
      } else {
        EXPECT_TRUE(IsOk(
            cuda::LinearFewRows(packed, {.x = x.data(), .num_tokens = num_rows, .y = qkv.data()},
                                {few_rows_}, *stream_)));
        EXPECT_TRUE(IsOk(cuda::RopeAppend(append, *stream_)));
      }
      return Appended{q.Read(*stream_), pages.Read(*stream_)};
    };
    const Appended fused = run(true);
    return {fused, run(false)};
  }

  void Fused(const Case& of, const cuda::PackedLinear& packed, const BFloat16* x, int num_rows,
             const RopeAppendArgs<BFloat16>& append) {
    cuda::FewRowsProduct product = {.format = packed.format(),
                                    .weight = packed.weight(),
                                    .scale = packed.matrix().scale,
                                    .in_features = packed.in_features(),
                                    .out_features = packed.out_features(),
                                    .x = x + of.first_row * of.in_features,
                                    .x_stride = of.in_features,
                                    .num_tokens = num_rows - of.first_row,
                                    .form = cuda::FewRowsForm::kAppend,
                                    .bias = packed.bias(),
                                    .pairs = cuda::FewRowsPairs::Of(append),
                                    .append = &append,
                                    .first_row = of.first_row};
    if (of.splits.empty() && of.first_row == 0) {
      EXPECT_TRUE(IsOk(cuda::LinearAppendFewRows(packed, {.x = x, .num_tokens = num_rows}, append,
                                                 {few_rows_}, *stream_)));
    } else if (of.splits.empty()) {
      EXPECT_TRUE(IsOk(few_rows_.Multiply(product, *stream_)));
    } else {
      const cuda::FewRowsPlan plan = {.splits = of.splits[0],
                                      .columns = of.splits[1],
                                      .tile = std::min(of.splits[2], product.num_tokens),
                                      .tiles_at_once = 1,
                                      .stages = 2};
      EXPECT_TRUE(IsOk(few_rows_.Multiply(product, plan, *stream_)));
    }
  }

  cuda::FewRows few_rows_;
};

TEST_F(FewRowsAppendTest, HasTheBitsOfTwoKernels) {
  for (const RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved, RopeStyle::kNone}) {
    for (const auto& [k_maps, head_dim, v_dim] : {std::tuple{1, 16, 16},
                                                  {2, 16, 32},
                                                  {2, 32, 64},
                                                  {1, 48, 48},
                                                  {2, 48, 96},
                                                  {2, 64, 64},
                                                  {1, 80, 80},
                                                  {2, 112, 224},
                                                  {1, 128, 256},
                                                  {1, 256, 256}}) {
      for (const bool has_kv : {true, false}) {
        const auto [fused, apart] = Run({.spec = SpecOf(k_maps, head_dim, v_dim),
                                         .style = style,
                                         .has_kv = has_kv,
                                         .has_bias = head_dim == 48});
        EXPECT_EQ(fused.q, apart.q) << head_dim << " " << static_cast<int>(style);
        EXPECT_TRUE(fused.pages == apart.pages)
            << head_dim << " " << v_dim << " style " << static_cast<int>(style);
      }
    }
  }
}

TEST_F(FewRowsAppendTest, HeadsMayBeRotatedInPart) {
  for (const RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved}) {
    const auto [fused, apart] = Run(
        {.spec = SpecOf(2, 64, 128), .style = style, .in_features = 200, .rotated_pairs = 13});
    EXPECT_TRUE(fused == apart);
  }
}

TEST_F(FewRowsAppendTest, EveryFormatOfWeightsHasTheBitsOfTwoKernels) {
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kFp8E4M3}) {
    if (!testing::DeviceMultiplies(format)) continue;
    for (const RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved}) {
      const auto [fused, apart] = Run(
          {.spec = SpecOf(2, 48, 96), .style = style, .in_features = 200, .format = format});
      EXPECT_TRUE(fused == apart) << NameOf(format);
    }
  }
}

// Also where the last rows alone are computed: other kernels have those before.
TEST_F(FewRowsAppendTest, EveryPlanHasTheBitsOfTwoKernels) {
  for (const int splits : {1, 2, 8}) {
    for (const auto& [columns, tile] : {std::pair{1, 64}, {3, 64}, {3, 4}}) {
      const auto [fused, apart] = Run({.spec = SpecOf(2, 16, 32),
                                       .in_features = 520,
                                       .first_row = columns,
                                       .splits = {splits, columns, tile}});
      EXPECT_TRUE(fused == apart) << splits << " splits, " << columns << " columns, " << tile;
    }
  }
}

TEST_F(FewRowsAppendTest, ManyRowsOfAFreshPageHaveTheBitsOfTwoKernels) {
  const auto [fused, apart] = Run({.spec = SpecOf(1, 64, 64), .shapes = {{60, 75}, {0, 9}}});
  EXPECT_TRUE(fused == apart);
}

// A NaN of any payload is stored as RopeAppend stores it.
TEST_F(FewRowsAppendTest, NansAreStoredAlike) {
  for (const float feature : {3.0f, 150.0f, 290.0f}) {
    const auto [fused,
                apart] = Run({.spec = SpecOf(1, 48, 48), .has_bias = true, .nan_feature = feature});
    EXPECT_TRUE(fused == apart) << feature;
  }
}

TEST_F(FewRowsAppendTest, EveryScheduleOfThreadsGivesTheSameBits) {
  OnEverySchedule([&] {
    const auto [fused, apart] = Run({.spec = SpecOf(2, 16, 32), .splits = {4, 2, 8}});
    EXPECT_TRUE(fused == apart);
  });
}

}  // namespace
}  // namespace diffserve
