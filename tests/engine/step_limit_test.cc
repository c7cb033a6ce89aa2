// SPDX-License-Identifier: Apache-2.0
// EngineOptions::max_step_ms: how long steps take in which sequences decode beside prompts.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "engine/engine_loop.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_executor.h"
#include "tests/testing/engine/watched_executor.h"

namespace diffserve {
namespace {

using testing::FakeExecutor;
using testing::MakeRequest;
using testing::WatchedExecutor;

constexpr double kStepMs = 10, kTokenMs = 0.1;
constexpr int kPrompt = 4096;

EngineOptions Options(double max_step_ms) {
  EngineOptions options;
  options.page_size = 16;
  options.num_pages = 1024;
  options.max_model_len = 8192;
  options.max_num_seqs = 40;
  options.max_num_batched_tokens = 2048;
  options.max_step_ms = static_cast<float>(max_step_ms);
  return options;
}

// An engine whose steps take as long as StepCost supposes.
class StepLimit {
 public:
  StepLimit(double max_step_ms, int depth)
      : options_(Options(max_step_ms)),
        depth_(depth),
        inbox_(options_, [this] { return Now(); }),
        loop_(options_, Executor(), inbox_,
              {.now = [this] { return Now(); },
               .deliver = [this](const TokenEvent& event) { Take(event); },
               .publish = [](const EngineStats&) {},
               .kv_events = nullptr}) {}

  // Eight sequences decode while prompts arrive, one after another. Returns the time of each step
  // with decodes and prompts.
  std::vector<double> Run() {
    for (int i = 0; i < 8; ++i) Submit(32, 900);
    for (int turn = 0; turn < 20; ++turn) loop_.Turn();
    for (int prompt = 0; prompt < 3; ++prompt) {
      Submit(kPrompt, 4);
      const RequestId id = last_id_;
      while (ended_.count(id) == 0) loop_.Turn();
    }
    while (!loop_.idle()) loop_.Turn();
    EXPECT_EQ(ended_.size(), 11u);
    for (const auto& [id, finish] : ended_) EXPECT_EQ(finish, FinishReason::kLength);
    return mixed_ms_;
  }

 private:
  struct Step {
    int decodes = 0, tokens = 0;
  };

  TimePoint Now() const {
    return TimePoint(std::chrono::duration_cast<TimePoint::duration>(
        std::chrono::duration<double, std::milli>(now_ms_)));
  }
  std::unique_ptr<diffserve::Executor> Executor() {
    return std::make_unique<WatchedExecutor>(
        FakeExecutor(options_, {.depth = depth_}),
        [this](const StepPlan& plan) {
          const auto decodes = std::ranges::count_if(
              plan.sequences, [](const PlannedSequence& s) { return s.num_planned == 1; });
          steps_.push_back({static_cast<int>(decodes), plan.num_tokens()});
        },
        [this] {
          const Step step = steps_.front();
          steps_.pop_front();
          const double ms = kStepMs + kTokenMs * step.tokens;
          now_ms_ += ms;
          if (step.decodes > 0 && step.tokens > step.decodes) mixed_ms_.push_back(ms);
        });
  }
  void Submit(int prompt, int max_tokens) {
    ++last_id_;
    Request request = MakeRequest(last_id_, prompt, max_tokens, 100 * static_cast<int>(last_id_));
    request.arrival = Now();
    request.start_by = Now() + std::chrono::hours(1);
    EXPECT_TRUE(inbox_.Submit(std::move(request)).ok());
  }
  void Take(const TokenEvent& event) {
    if (event.finish == FinishReason::kNone) return;
    inbox_.Finish(event.request);
    ended_[event.request] = event.finish;
  }

  const EngineOptions options_;
  const int depth_;
  double now_ms_ = 1000;
  std::deque<Step> steps_;  // that run
  std::vector<double> mixed_ms_;
  std::map<RequestId, FinishReason> ended_;
  RequestId last_id_ = 0;
  Inbox inbox_;
  EngineLoop loop_;
};

TEST(StepLimitTest, StepsWithDecodesKeepTheirTimeWhilePromptsArrive) {
  for (const int depth : {1, 2}) {
    const std::vector<double> limited = StepLimit(40, depth).Run();
    EXPECT_LE(std::ranges::max(limited), 40.0 + 1e-6) << "depth " << depth;
    EXPECT_GE(std::ranges::max(limited), 39.0) << "the time is used";
    const std::vector<double> unlimited = StepLimit(0, depth).Run();
    EXPECT_GT(std::ranges::max(unlimited), kStepMs + kTokenMs * 2000);
  }
}

TEST(StepLimitTest, PromptsAdvanceByAPageWhereTheTimeIsTooShort) {
  const std::vector<double> limited = StepLimit(1, 1).Run();
  const auto page_ms = kStepMs + kTokenMs * (8 + 16);
  EXPECT_NEAR(std::ranges::max(limited), page_ms, 0.1 + 1e-6);
  EXPECT_GE(std::ssize(limited), 3 * kPrompt / 16);
}

}  // namespace
}  // namespace diffserve
