// SPDX-License-Identifier: Apache-2.0
#include "server/router/children/gpu_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "server/router/children/visible_gpus.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr UsableGpu kTwo[] = {{0, 100 * kGiB}, {1, 100 * kGiB}};
constexpr UsableGpu kOne[] = {{0, 100 * kGiB}};

std::vector<size_t> Gpus(const std::vector<GpuPlace>& places) {
  std::vector<size_t> gpus;
  for (const GpuPlace& place : places) gpus.push_back(place.gpu);
  return gpus;
}

std::vector<double> Shares(const std::vector<GpuPlace>& places) {
  std::vector<double> shares;
  for (const GpuPlace& place : places) shares.push_back(std::round(place.share * 1000) / 1000);
  return shares;
}

GpuDemand OfGiB(int64_t gib) { return {.bytes = gib * kGiB}; }

TEST(GpuPlacesTest, ModelsOfUnknownSizeAreSpreadInTheirOrder) {
  const std::vector<GpuPlace> places = SpreadOverGpus(std::vector<GpuDemand>(3), kTwo, 0);
  EXPECT_THAT(Gpus(places), ElementsAre(0, 1, 0));
  EXPECT_THAT(Shares(places), ElementsAre(0.45, 0.9, 0.45));
}

TEST(GpuPlacesTest, EachModelGetsTheGpuOfWhichLeastIsDemanded) {
  const std::vector<GpuDemand> demands = {OfGiB(30), OfGiB(5), OfGiB(5), OfGiB(30)};
  EXPECT_THAT(Gpus(SpreadOverGpus(demands, kTwo, 0)), ElementsAre(0, 1, 1, 1));
  const UsableGpu unequal[] = {{0, 20 * kGiB}, {1, 80 * kGiB}};
  EXPECT_THAT(Gpus(SpreadOverGpus(std::vector(3, OfGiB(10)), unequal, 0)), ElementsAre(1, 1, 1));
}

TEST(GpuPlacesTest, DemandedGpusComeBeforePinnedModelsAndTheseBeforeTheOthers) {
  const std::vector<GpuDemand> demands = {{}, {.pinned = true}, {.pinned = true}, {.gpu = 0}};
  EXPECT_THAT(Gpus(SpreadOverGpus(demands, kTwo, 0)), ElementsAre(1, 1, 0, 0));
}

TEST(GpuPlacesTest, GpuIsDemandedByItsNumber) {
  const UsableGpu gpus[] = {{3, kGiB}, {5, kGiB}};
  EXPECT_THAT(Gpus(SpreadOverGpus(std::vector<GpuDemand>{{.gpu = 5}, {.gpu = 5}}, gpus, 0)),
              ElementsAre(1, 1));
}

TEST(GpuPlacesTest, ModelsThatAreNeverLoadedTogetherNeedNotShare) {
  const std::vector<GpuDemand> demands(6);
  EXPECT_DOUBLE_EQ(SpreadOverGpus(demands, kOne, 1)[0].share, 0.9);
  EXPECT_DOUBLE_EQ(SpreadOverGpus(demands, kOne, 2)[0].share, 0.45);
  EXPECT_DOUBLE_EQ(SpreadOverGpus(demands, kOne, 0)[0].share, 0.15);
}

TEST(GpuPlacesTest, ModelHasItsWeightsAndAnEqualPartOfWhatIsLeft) {
  const std::vector<GpuDemand> demands = {OfGiB(60), OfGiB(10)};
  EXPECT_THAT(Shares(SpreadOverGpus(demands, kOne, 0)), ElementsAre(0.7, 0.2));
}

TEST(GpuPlacesTest, ModelsThatDoNotFitTogetherGetLittleForPagesAndTakeTurns) {
  const std::vector<GpuDemand> demands = {OfGiB(60), OfGiB(50), OfGiB(85)};
  EXPECT_THAT(Shares(SpreadOverGpus(demands, kOne, 0)), ElementsAre(0.7, 0.6, 0.9));
}

TEST(GpuPlacesTest, SharesOfFlagsAreKeptAndTheRestIsShared) {
  std::vector<GpuDemand> demands = {{.share = 0.5}, {}, {}};
  EXPECT_THAT(Shares(SpreadOverGpus(demands, kOne, 4)), ElementsAre(0.5, 0.2, 0.2));
  demands[0].share = 0.95;
  EXPECT_THAT(Shares(SpreadOverGpus(demands, kOne, 4)), ElementsAre(0.95, 0.1, 0.1));
}

// Models of random size on random GPUs.
TEST(GpuPlacesTest, AnyModelsThatMayBeLoadedTogetherFitIfTheyCan) {
  std::mt19937 random(7);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % bound); };
  for (int round = 0; round < 1000; ++round) {
    std::vector<UsableGpu> gpus(static_cast<size_t>(1 + below(4)));
    for (size_t i = 0; i < gpus.size(); ++i) gpus[i] = {2 * i, (1 + below(3)) * 40 * kGiB};
    std::vector<GpuDemand> demands(static_cast<size_t>(1 + below(12)));
    for (GpuDemand& demand : demands) demand = {.bytes = below(20) * kGiB, .pinned = below(3) == 0};
    const size_t max_loaded = static_cast<size_t>(below(6));
    const std::vector<GpuPlace> places = SpreadOverGpus(demands, gpus,
                                                        static_cast<int>(max_loaded));
    for (size_t gpu = 0; gpu < gpus.size(); ++gpu) {
      std::vector<std::pair<double, double>> shares;  // and what weights and steps take
      for (size_t i = 0; i < places.size(); ++i) {
        if (places[i].gpu != gpu) continue;
        shares.emplace_back(places[i].share, static_cast<double>(demands[i].bytes) /
                                                 static_cast<double>(gpus[gpu].bytes));
        EXPECT_GE(places[i].share, std::min(kGpuShareMax, shares.back().second + kPagesShareMin));
      }
      std::ranges::sort(shares, std::greater<>());
      if (max_loaded > 0) shares.resize(std::min(shares.size(), max_loaded));
      double sum = 0, needed = 0;
      for (const auto& [share, need] : shares) sum += share, needed += need + kPagesShareMin;
      if (needed > kGpuShareMax || shares.empty()) continue;
      EXPECT_NEAR(sum, kGpuShareMax, 1e-9) << "no memory is left unused, and none given twice";
    }
  }
}

TEST(VisibleGpusTest, ListIsReadAndAnythingElseIsAnError) {
  const VisibleGpus gpus =
      ParseVisibleGpus(
          R"({"gpus":[{"device":"cuda:0","name":"H200","uuid":"GPU-0","compute_capability":90,
              "memory_mib":143771,"refusal":null},
             {"device":"cuda:1","name":"T4","memory_mib":15095,"refusal":"too old"}],
             "reason":null})")
          .value();
  ASSERT_EQ(gpus.all.size(), 2u);
  EXPECT_EQ(gpus.all[0].name, "H200");
  EXPECT_EQ(gpus.all[0].memory_mib, 143771);
  EXPECT_EQ(gpus.all[0].refusal, "");
  EXPECT_EQ(gpus.all[1].refusal, "too old");
  EXPECT_EQ(ParseVisibleGpus(R"({"gpus":[],"reason":"no driver"})")->reason, "no driver");
  EXPECT_THAT(ParseVisibleGpus("").status().message(), HasSubstr("`diffserve devices` shows why"));
  EXPECT_FALSE(ParseVisibleGpus(R"({"gpus":[{"name":7}]})").ok());
}

}  // namespace
}  // namespace diffserve
