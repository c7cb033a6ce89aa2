// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/layout_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/kernels/attention_specs.h"

namespace diffserve {
namespace {

// Two groups, each with two keys of 64 and a value of 128 numbers per slot. Layer 1 has a window,
// layer 2 reads layer 0's keys.
ModelConfig LayeredModel() {
  ModelConfig config;
  config.attention = testing::DiffLlamaSpec(4, 2, 64);
  config.layers = {{.kv = 0}, {.window = 32, .kv = 1}, {.kv = 0, .shares_kv = true}, {.kv = 2}};
  config.num_layers = 4;
  return config;
}

// Pages of 16 slots in the weights' dtype, bfloat16: 16 KiB per layer.
constexpr size_t kLayerBytes = 16 * 2 * (2 * 64 + 128) * 2;

LayoutDemand PlainLayout(void (*change)(LayoutDemand& demand) = nullptr) {
  LayoutDemand demand = {.model_dir = "m", .weights = DType::kBFloat16};
  demand.lengths.page_size = 16;
  if (change != nullptr) change(demand);
  return demand;
}

TEST(LayoutPlanTest, BytesOfPagesFollowFromFlagsAndModel) {
  struct Case {
    const char* name;
    LayoutDemand demand;
    size_t page_bytes, window_page_bytes;
  };
  const std::vector<Case> cases = {
      {"three layers with keys of their own", PlainLayout(), 3 * kLayerBytes, 0},
      {"longer pages", PlainLayout([](auto& d) { d.lengths.page_size = 64; }), 12 * kLayerBytes, 0},
      {"windows have ids of their own", PlainLayout([](auto& d) { d.lengths.window = 32; }),
       2 * kLayerBytes, kLayerBytes},
      {"wider numbers", PlainLayout([](auto& d) { d.asked = DType::kFloat32; }), 6 * kLayerBytes,
       0},
      {"but in the last layer", PlainLayout([](auto& d) {
         d.asked = DType::kFloat32;
         d.skip_layers = {-1};
       }),
       5 * kLayerBytes, 0},
      {"and in the one with a window", PlainLayout([](auto& d) {
         d.asked = DType::kFloat32;
         d.skip_layers = {3, 1};
         d.lengths.window = 32;
       }),
       3 * kLayerBytes, kLayerBytes},
  };
  for (const Case& c : cases) {
    const Result<LayoutPlan> plan = PlanLayout(c.demand, LayeredModel());
    ASSERT_TRUE(plan.ok()) << c.name << ": " << plan.status().message();
    EXPECT_EQ(plan->page_bytes, c.page_bytes) << c.name;
    EXPECT_EQ(plan->window_page_bytes, c.window_page_bytes) << c.name;
    EXPECT_EQ(plan->layouts.size(), 3u) << c.name;
    EXPECT_EQ(plan->layout.codec.dtype, c.demand.asked.value_or(DType::kBFloat16)) << c.name;
  }
}

TEST(LayoutPlanTest, RefusalNamesTheFlagAndWhatIsAllowed) {
  const auto refusal = [](void (*change)(LayoutDemand& demand), int head_dim = 64) {
    ModelConfig config = LayeredModel();
    config.attention = testing::DiffLlamaSpec(4, 2, head_dim);
    return PlanLayout(PlainLayout(change), config).status().message();
  };
  EXPECT_EQ(refusal([](auto& d) { d.skip_layers = {4}; }),
            "--kv-cache-dtype-skip-layers has 4; allowed: -4 to 3, the layers of m");
  EXPECT_EQ(refusal([](auto& d) { d.skip_layers = {2}; }),
            "--kv-cache-dtype-skip-layers has 2, a layer without K and V of its own");
  EXPECT_TRUE(refusal([](auto& d) {
                d.asked = DType::kFp8E4M3;
              }).starts_with("--kv-cache-dtype is fp8_e4m3 on a CPU; allowed: auto, "));
  EXPECT_EQ(refusal([](auto& d) {
              d.on_gpu = true;
              d.asked = DType::kFloat32;
            }).substr(0, 55),
            "--kv-cache-dtype is float32 on a GPU; allowed: auto, bf");
  EXPECT_TRUE(
      refusal([](auto&) {}, 65)
          .starts_with(
              "--kv-cache-dtype is bfloat16, which needs a head_dim that is a multiple of "));
}

}  // namespace
}  // namespace diffserve
