// SPDX-License-Identifier: Apache-2.0
// A needle among 65,536 slots is found in every page format: sums over a long context lose neither
// a large score nor a value.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/kernels/attention_batch.h"
#include "tests/testing/kernels/attention_specs.h"

namespace diffserve {
namespace {

constexpr int kSlots = 1 << 16;
constexpr int kHeadDim = 32;

struct NeedleCase {
  CpuIsa isa;
  DType pages;
};
std::vector<NeedleCase> Cases() {
  std::vector<NeedleCase> cases;
  for (CpuIsa isa : testing::KernelLevels()) {
    for (DType pages : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8,
                        DType::kInt8KInt4V, DType::kInt4})
      cases.push_back({isa, pages});
  }
  return cases;
}

class LongNeedleTest : public ::testing::TestWithParam<NeedleCase> {};

// The needle's key is similar to q1. All other keys and values are noise, and map 2 sees only
// noise.
TEST_P(LongNeedleTest, IsFoundAtAnyDepth) {
  DiffSpec spec = testing::V2Spec(1, 1, kHeadDim);
  spec.sub_norm = SubNorm::kNone;
  testing::AttentionBatch batch(spec, {{kSlots - 1, 1}},
                                {.format = KvFormat::Of(spec, 64, GetParam().pages)});
  batch.out_scale = 1;
  batch.lambda_rows = {0.5f};
  for (size_t d = 0; d < kHeadDim; ++d) batch.q[d] = d % 3 == 0 ? -2.0f : 2.0f;  // its square: 128
  ThreadPool pool({.num_threads = 2, .pin = false});
  cpu::AttentionWorkspace workspace;
  const KvFormat& format = batch.memory.format();
  for (int needle : {3, 30'000, kSlots - 2}) {
    std::byte* page = batch.memory.kv().Page(batch.memory.sequences()[0].pages[needle / 64], 0);
    const std::vector<std::byte> before(page, page + format.PageBytes());
    std::vector<float> k(batch.q.begin(), batch.q.begin() + kHeadDim), v;
    for (int d = 0; d < kHeadDim; ++d) v.push_back(static_cast<float>((d * 7 + needle) % 16 - 8));
    SetK(format, page, 0, needle % 64, k);
    SetV(format, page, needle % 64, v);
    const std::vector<double> stored = VRow(format, page, needle % 64);
    std::vector<float> out;
    cpu::DiffAttention(batch.Args(out), workspace, GetParam().isa, pool);
    for (size_t d = 0; d < kHeadDim; ++d)
      ASSERT_NEAR(out[d], stored[d], 0.1) << needle << ", " << d;
    std::ranges::copy(before, page);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LongNeedleTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return std::string(NameOf(info.param.isa)) + "_" +
                                  std::string(NameOf(info.param.pages));
                         });

}  // namespace
}  // namespace diffserve
