// SPDX-License-Identifier: Apache-2.0
#include "server/router/children/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace diffserve {
namespace {

using std::chrono::seconds;

constexpr ResidencyTime At(int second) { return ResidencyTime(seconds(second)); }

ResidentModel Loaded(int last_used, int64_t bytes = 1) {
  return {.state = ModelState::kLoaded, .bytes = bytes, .last_used = At(last_used)};
}
ResidentModel Wanted(int since, int64_t bytes = 1) {
  return {.bytes = bytes, .wanted_since = At(since)};
}

std::vector<size_t> Stopped(const ResidencyActions& actions) {
  std::vector<size_t> models;
  for (const auto& stop : actions.stop) models.push_back(stop.model);
  return models;
}

TEST(ResidencyTest, StartsAWantedModelWhereThereIsRoom) {
  const std::vector<ResidentModel> models = {Loaded(1), Wanted(5), {}};
  const ResidencyActions actions = PlanResidency(models, {.max_loaded = 2}, At(6));
  EXPECT_EQ(actions.start, std::vector<size_t>{1});
  EXPECT_TRUE(actions.stop.empty());
}

TEST(ResidencyTest, StopsTheLeastRecentlyUsedIdleModelForAnother) {
  const std::vector<ResidentModel> models = {Loaded(3), Loaded(1), Loaded(2), Wanted(5)};
  const ResidencyActions actions = PlanResidency(models, {.max_loaded = 3}, At(6));
  EXPECT_TRUE(actions.start.empty()) << "the stopped model still has its room";
  EXPECT_EQ(Stopped(actions), std::vector<size_t>{1});
  EXPECT_EQ(actions.stop[0].reason, StopReason::kRoom);
}

TEST(ResidencyTest, NeverStopsABusyOrPinnedModelForAnother) {
  std::vector<ResidentModel> models = {Loaded(1), Loaded(2), Wanted(5)};
  models[0].in_flight = 1;
  models[1].pinned = true;
  const ResidencyActions actions = PlanResidency(models, {.max_loaded = 2}, At(6));
  EXPECT_TRUE(actions.start.empty());
  EXPECT_TRUE(actions.stop.empty());
}

TEST(ResidencyTest, StopsNothingWhereThatMakesTooLittleRoom) {
  std::vector<ResidentModel> models = {Loaded(1, 10), Loaded(2, 60), Wanted(5, 50)};
  models[1].in_flight = 1;
  EXPECT_TRUE(PlanResidency(models, {.max_loaded = 0, .max_bytes = 100}, At(6)).stop.empty());
  models[2].bytes = 40;
  EXPECT_EQ(Stopped(PlanResidency(models, {.max_loaded = 0, .max_bytes = 100}, At(6))),
            std::vector<size_t>{0});
}

ResidentModel OnGpu(ResidentModel model, size_t gpu, double share) {
  model.gpu = gpu;
  model.gpu_share = share;
  return model;
}

TEST(ResidencyTest, ModelsOfAGpuShareItsMemory) {
  std::vector<ResidentModel> models = {OnGpu(Loaded(1), 0, 0.7), OnGpu(Wanted(5), 0, 0.3)};
  EXPECT_EQ(PlanResidency(models, {}, At(6)).start, std::vector<size_t>{1});
  models[1].gpu_share = 0.4;
  EXPECT_TRUE(PlanResidency(models, {}, At(6)).start.empty());
  models[1].gpu = 1;
  EXPECT_EQ(PlanResidency(models, {}, At(6)).start, std::vector<size_t>{1});
}

TEST(ResidencyTest, TenTenthsOfAGpuFit) {
  std::vector<ResidentModel> models(9, OnGpu(Loaded(1), 0, 0.1));
  models.push_back(OnGpu(Wanted(5), 0, 0.1));
  EXPECT_EQ(PlanResidency(models, {.max_loaded = 0}, At(6)).start, std::vector<size_t>{9});
}

TEST(ResidencyTest, RoomOnAGpuIsMadeByTheModelsOfThatGpu) {
  std::vector<ResidentModel> models = {OnGpu(Loaded(1), 0, 0.8), OnGpu(Loaded(2), 1, 0.8),
                                       Loaded(0), OnGpu(Wanted(5), 1, 0.8)};
  EXPECT_EQ(Stopped(PlanResidency(models, {.max_loaded = 0}, At(6))), std::vector<size_t>{1});
  models[1].in_flight = 1;
  EXPECT_TRUE(PlanResidency(models, {.max_loaded = 0}, At(6)).stop.empty());
}

TEST(ResidencyTest, HostMemoryIsNotMadeByAModelOnAGpu) {
  const std::vector<ResidentModel> models = {OnGpu(Loaded(1, 0), 0, 0.8), Loaded(2, 60),
                                             Wanted(5, 50)};
  EXPECT_EQ(Stopped(PlanResidency(models, {.max_loaded = 0, .max_bytes = 100}, At(6))),
            std::vector<size_t>{1});
}

TEST(ResidencyTest, WaitsForWhatStopsAlready) {
  std::vector<ResidentModel> models = {Loaded(1), Loaded(2), Wanted(5)};
  models[0].state = ModelState::kStopping;
  const ResidencyActions actions = PlanResidency(models, {.max_loaded = 2}, At(6));
  EXPECT_TRUE(actions.start.empty());
  EXPECT_TRUE(actions.stop.empty());
}

TEST(ResidencyTest, LoadsAreInTheOrderOfTheirRequests) {
  std::vector<ResidentModel> models = {Loaded(1, 60), Wanted(4, 50), Wanted(5, 10)};
  models[0].in_flight = 1;
  EXPECT_TRUE(PlanResidency(models, {.max_loaded = 0, .max_bytes = 100}, At(6)).start.empty());
  std::swap(models[1].wanted_since, models[2].wanted_since);
  EXPECT_EQ(PlanResidency(models, {.max_loaded = 0, .max_bytes = 100}, At(6)).start,
            std::vector<size_t>{2});
}

TEST(ResidencyTest, ClientsTakeTurnsToLoad) {
  std::vector<ResidentModel> models(4);
  SetWanted({{0, "a", At(1)}, {1, "a", At(2)}, {2, "a", At(3)}, {3, "b", At(4)}, {2, "b", At(5)}},
            models);
  std::vector<size_t> order;
  while (order.size() < models.size()) {
    const ResidencyActions actions = PlanResidency(models, {.max_loaded = 1}, At(6));
    ASSERT_EQ(actions.start.size(), 1u);
    order.push_back(actions.start[0]);
    models[actions.start[0]].wanted_since.reset();
  }
  EXPECT_EQ(order, (std::vector<size_t>{0, 3, 1, 2}))
      << "b waits for one model of a, not for three";
}

TEST(ResidencyTest, RepeatedRequestsForAModelTakeNoTurn) {
  std::vector<ResidentModel> models(3);
  SetWanted({{0, "a", At(1)}, {0, "a", At(2)}, {0, "a", At(3)}, {1, "a", At(5)}, {2, "b", At(4)}},
            models);
  EXPECT_EQ(models[0].wanted_since, At(1));
  EXPECT_EQ(models[1].turn, 1);
  EXPECT_EQ(models[2].turn, 0);
}

TEST(ResidencyTest, StopsIdleModelsAndSaysWhenTheNextIsDue) {
  std::vector<ResidentModel> models = {Loaded(10), Loaded(17), Loaded(1), Loaded(2)};
  models[2].in_flight = 1;
  models[3].pinned = true;
  const ResidencyActions actions = PlanResidency(models, {.idle_timeout = seconds(5)}, At(15));
  EXPECT_EQ(Stopped(actions), std::vector<size_t>{0});
  EXPECT_EQ(actions.stop[0].reason, StopReason::kIdle);
  EXPECT_EQ(actions.next, At(22));
}

TEST(ResidencyTest, FailedModelsWaitAndLetOthersPass) {
  std::vector<ResidentModel> models = {Wanted(1), Wanted(2)};
  models[0].not_before = At(9);
  const ResidencyActions actions = PlanResidency(models, {.max_loaded = 1}, At(3));
  EXPECT_EQ(actions.start, std::vector<size_t>{1});
  EXPECT_EQ(actions.next, At(9));
}

TEST(ResidencyTest, FindsAModelThatNeverFits) {
  std::vector<ResidentModel> models = {{.bytes = 60}, {.bytes = 50, .pinned = true}};
  EXPECT_FALSE(FindMisfit(models, {.max_loaded = 2, .max_bytes = 110}));
  const auto by_bytes = FindMisfit(models, {.max_loaded = 2, .max_bytes = 100});
  ASSERT_TRUE(by_bytes);
  EXPECT_EQ(by_bytes->model, 0u);
  EXPECT_EQ(by_bytes->bytes, 110);
  EXPECT_TRUE(FindMisfit(models, {.max_loaded = 1}));
  models = {OnGpu({.pinned = true}, 1, 0.6), OnGpu({}, 1, 0.5), OnGpu({}, 0, 0.5)};
  const auto by_share = FindMisfit(models, {});
  ASSERT_TRUE(by_share);
  EXPECT_EQ(by_share->model, 1u);
  EXPECT_NEAR(by_share->gpu_share, 1.1, 1e-9);
}

TEST(ResidencyTest, RestartsAfterGrowingDelays) {
  std::vector<int64_t> delays;
  for (int failures = 1; failures <= 10; ++failures)
    delays.push_back(RestartDelay(failures).count());
  EXPECT_EQ(delays, (std::vector<int64_t>{0, 1, 2, 4, 8, 16, 32, 60, 60, 60}));
}

// Models, requests and processes over seconds of a clock of its own.
class ResidencySimulation {
 public:
  explicit ResidencySimulation(uint32_t seed) : random_(seed) {
    limits_ = {.max_loaded = 1 + Below(4),
               .max_bytes = Below(2) == 0 ? 0 : 100,
               .idle_timeout = seconds(Below(2) == 0 ? 0 : 5 + Below(20))};
    models_.resize(2 + static_cast<size_t>(Below(6)));
    for (ResidentModel& model : models_) {
      model.bytes = 10 + Below(60);
      if (Below(2) == 0) continue;
      model.bytes = 0;
      model.gpu = static_cast<size_t>(Below(2));
      model.gpu_share = 0.1 * (1 + Below(10));
    }
    waiting_.resize(models_.size());
    busy_until_.resize(models_.size());
    changes_at_.resize(models_.size());
  }

  void Run() {
    for (now_ = 1; now_ < 2000; ++now_) {
      if (now_ < 1500 && Below(3) == 0) waiting_[AnyModel()].push_back(now_);
      FinishRequestsAndProcesses();
      Act();
      CheckLimits();
    }
    for (const auto& waits : waiting_) EXPECT_TRUE(waits.empty()) << "a request was never served";
    EXPECT_GT(served_, 100);
  }

 private:
  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint32_t>(bound)); }
  size_t AnyModel() { return static_cast<size_t>(Below(static_cast<int>(models_.size()))); }

  void FinishRequestsAndProcesses() {
    for (size_t i = 0; i < models_.size(); ++i) {
      ResidentModel& model = models_[i];
      const auto ended = std::erase_if(busy_until_[i], [&](int end) { return end <= now_; });
      if (ended > 0) model.last_used = At(now_);
      model.in_flight = static_cast<int>(busy_until_[i].size());
      if (model.state == ModelState::kLoading && changes_at_[i] <= now_) {
        model.state = ModelState::kLoaded;
        model.last_used = At(now_);
      }
      if (model.state == ModelState::kStopping && changes_at_[i] <= now_)
        model.state = ModelState::kUnloaded;
      if (model.state == ModelState::kLoaded) {
        for (; !waiting_[i].empty(); waiting_[i].pop_front(), ++served_)
          busy_until_[i].push_back(now_ + 1 + Below(6));
        model.in_flight = static_cast<int>(busy_until_[i].size());
      }
      model.wanted_since.reset();
      if (!waiting_[i].empty()) model.wanted_since = At(waiting_[i].front());
    }
  }

  void Act() {
    const ResidencyActions actions = PlanResidency(models_, limits_, At(now_));
    for (const auto& stop : actions.stop) {
      ResidentModel& model = models_[stop.model];
      ASSERT_EQ(model.state, ModelState::kLoaded);
      ASSERT_EQ(model.in_flight, 0) << "a busy model was stopped";
      for (const ResidentModel& other : models_) {
        const bool idle = other.state == ModelState::kLoaded && other.in_flight == 0;
        ASSERT_FALSE(idle && other.gpu == model.gpu && other.last_used < model.last_used)
            << "another was used earlier";
      }
      model.state = ModelState::kStopping;
      changes_at_[stop.model] = now_ + 1 + Below(3);
    }
    for (const size_t start : actions.start) {
      ASSERT_EQ(models_[start].state, ModelState::kUnloaded);
      models_[start].state = ModelState::kLoading;
      changes_at_[start] = now_ + 1 + Below(5);
    }
  }

  void CheckLimits() const {
    int count = 0;
    int64_t bytes = 0;
    double gpu_shares[2] = {};
    for (const ResidentModel& model : models_) {
      if (model.state == ModelState::kUnloaded) continue;
      ++count;
      bytes += model.bytes;
      if (model.gpu) gpu_shares[*model.gpu] += model.gpu_share;
    }
    for (const double shares : gpu_shares) ASSERT_LE(shares, 1 + 1e-6);
    ASSERT_LE(count, limits_.max_loaded);
    if (limits_.max_bytes > 0) {
      ASSERT_LE(bytes, limits_.max_bytes);
    }
  }

  std::mt19937 random_;
  ResidencyLimits limits_;
  int now_ = 0;
  int served_ = 0;
  std::vector<ResidentModel> models_;
  std::vector<std::deque<int>> waiting_;
  std::vector<std::vector<int>> busy_until_;
  std::vector<int> changes_at_;
};

TEST(ResidencySimulationTest, KeepsTheLimitsAndServesEveryRequest) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    ResidencySimulation(seed).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace diffserve
