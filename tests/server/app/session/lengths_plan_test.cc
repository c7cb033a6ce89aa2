// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/lengths_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace diffserve {
namespace {

// As the flags leave it, for a model of 4096 positions in the directory m.
LengthsDemand PlainLengths() {
  LengthsDemand demand = {.model_dir = "m", .state_snapshot_interval = 1024};
  demand.engine.page_size = 0;
  return demand;
}

LengthsDemand LengthsWith(void (*change)(LengthsDemand& demand)) {
  LengthsDemand demand = PlainLengths();
  change(demand);
  return demand;
}

ModelConfig ModelOf(std::vector<LayerConfig> layers) {
  ModelConfig config;
  config.max_positions = 4096;
  config.num_layers = static_cast<int>(layers.size());
  config.layers = std::move(layers);
  return config;
}

ModelConfig PlainModel() { return ModelOf({{}, {}}); }
ModelConfig WindowModel() { return ModelOf({{.window = 512}, {}, {.window = 128}}); }
ModelConfig StateModel() { return ModelOf({{.mixer = MixerKind::kMamba}, {}}); }

TEST(LengthsPlanTest, LengthsFollowFromFlagsDeviceAndModel) {
  struct Case {
    const char* name;
    LengthsDemand demand;
    ModelConfig config;
    int page_size, max_model_len, window, snapshot_interval;
    bool caches_prefixes;
  };
  const std::vector<Case> cases = {
      {"a CPU's pages, the model's length", PlainLengths(), PlainModel(), 16, 4096, 0, 0, true},
      {"a GPU's pages", LengthsWith([](auto& d) { d.on_gpu = true; }), PlainModel(), 64, 4096, 0, 0,
       true},
      {"as the flags say", LengthsWith([](auto& d) {
         d.engine.page_size = 32;
         d.engine.max_model_len = 100;
         d.engine.enable_prefix_caching = false;
       }),
       PlainModel(), 32, 100, 0, 0, false},
      {"the widest window, snapshots with it", PlainLengths(), WindowModel(), 16, 4096, 512, 1024,
       true},
      {"no wider than the context", LengthsWith([](auto& d) { d.engine.max_model_len = 200; }),
       WindowModel(), 16, 200, 200, 1024, true},
      {"windows in the pages of all", LengthsWith([](auto& d) { d.has_window_pages = false; }),
       WindowModel(), 16, 4096, 0, 0, true},
      {"snapshots of states", PlainLengths(), StateModel(), 16, 4096, 0, 1024, true},
      {"no prefix is found without", LengthsWith([](auto& d) { d.state_snapshot_interval = 0; }),
       StateModel(), 16, 4096, 0, 0, false},
      {"no snapshots without an engine", LengthsWith([](auto& d) { d.keeps_prefixes = false; }),
       StateModel(), 16, 4096, 0, 0, true},
      {"nor without a cache", LengthsWith([](auto& d) { d.engine.enable_prefix_caching = false; }),
       StateModel(), 16, 4096, 0, 0, false},
  };
  for (const Case& c : cases) {
    const Result<LengthsPlan> plan = PlanLengths(c.demand, c.config);
    ASSERT_TRUE(plan.ok()) << c.name << ": " << plan.status().message();
    EXPECT_EQ(plan->page_size, c.page_size) << c.name;
    EXPECT_EQ(plan->max_model_len, c.max_model_len) << c.name;
    EXPECT_EQ(plan->window, c.window) << c.name;
    EXPECT_EQ(plan->state_snapshot_interval, c.snapshot_interval) << c.name;
    EXPECT_EQ(plan->enable_prefix_caching, c.caches_prefixes) << c.name;
  }
}

TEST(LengthsPlanTest, RefusalNamesTheFlagAndWhatIsAllowed) {
  const auto refusal = [](void (*change)(LengthsDemand& demand), const ModelConfig& config) {
    return PlanLengths(LengthsWith(change), config).status().message();
  };
  EXPECT_EQ(refusal(
                [](auto& d) {
                  d.on_gpu = true;
                  d.engine.page_size = 16;
                },
                PlainModel()),
            "--page-size is 16 on a GPU; allowed: 64 (or --device cpu)");
  EXPECT_EQ(refusal([](auto& d) { d.engine.max_model_len = 4097; }, PlainModel()),
            "--max-model-len is 4097; allowed: 1 to 4096 (max_position_embeddings of "
            "m/config.json)");
  EXPECT_EQ(refusal([](auto& d) { d.state_snapshot_interval = 100; }, StateModel()),
            "--state-snapshot-interval is 100; allowed: 0, a multiple of --page-size, 16");
}

}  // namespace
}  // namespace diffserve
