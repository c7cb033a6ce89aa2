// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "engine/device_error.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_executor.h"
#include "tests/testing/engine/step_gate.h"
#include "tests/testing/kernels/eventually.h"

namespace diffserve {
namespace {

using testing::Eventually;
using testing::FakeExecutor;
using testing::StepGate;
using testing::WithGate;

EngineOptions SmallOptions() {
  EngineOptions options = testing::SmallEngine();
  options.num_pages = 64;
  options.max_num_batched_tokens = 32;
  return options;
}

Request SmallRequest(RequestId id, int prompt_tokens = 5, int max_tokens = 7) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < prompt_tokens; ++i)
    prompt.push_back(static_cast<int32_t>((id * 7 + i * 13) % 250));
  Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.seed = id;
  return request;
}

// Collects the events of an engine. Thread-safe.
class Events {
 public:
  Engine::EventSink sink() {
    return [this](TokenEvent event) {
      std::lock_guard lock(mutex_);
      Outcome& outcome = outcomes_[event.request];
      EXPECT_EQ(outcome.terminal_events, 0) << "nothing comes after the terminal event";
      outcome.tokens.insert(outcome.tokens.end(), event.tokens.begin(), event.tokens.end());
      if (event.finish != FinishReason::kNone) {
        ++outcome.terminal_events;
        outcome.finish = event.finish;
        outcome.error = event.error;
        ++ended_;
      }
      changed_.notify_all();
    };
  }
  struct Outcome {
    std::vector<int32_t> tokens;
    int terminal_events = 0;
    FinishReason finish = FinishReason::kNone;
    Status error;
  };
  void WaitForEnded(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= count; });
  }
  Outcome Of(RequestId request) {
    std::lock_guard lock(mutex_);
    return outcomes_[request];
  }
  size_t ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Outcome> outcomes_;
  size_t ended_ = 0;
};

using std::chrono::steady_clock;

// Parameter: the executor's depth, the number of steps launched before the first is collected.
class EngineTest : public ::testing::TestWithParam<int> {
 protected:
  static int depth() { return GetParam(); }
  static std::unique_ptr<FakeExecutor> MakeExecutor(const EngineOptions& options,
                                                    FakeExecutor::Options fake = {}) {
    fake.depth = depth();
    return std::make_unique<FakeExecutor>(options, std::move(fake));
  }
  static std::unique_ptr<FakeExecutor> MakeGatedExecutor(const EngineOptions& options,
                                                         StepGate& gate) {
    return MakeExecutor(options, WithGate({}, gate));
  }
};

INSTANTIATE_TEST_SUITE_P(Depths, EngineTest, ::testing::Values(1, 2), [](const auto& info) {
  return info.param == 1 ? std::string("StepsOneByOne") : std::string("OneStepAhead");
});

// Records the order of calls: L launch, C collect.
class CallOrder : public Executor {
 public:
  CallOrder(std::unique_ptr<FakeExecutor> fake, std::string& calls)
      : fake_(std::move(fake)), calls_(calls) {}
  int depth() const override { return fake_->depth(); }
  void Launch(const StepPlan& plan) override {
    calls_ += " L" + std::to_string(plan.step);
    fake_->Launch(plan);
  }
  StepResult Collect() override {
    calls_ += " C" + std::to_string(++collected_);
    return fake_->Collect();
  }

 private:
  std::unique_ptr<FakeExecutor> fake_;
  std::string& calls_;
  int collected_ = 0;
};

TEST_P(EngineTest, LaunchesTheNextStepBeforeCollectingWithDepthTwo) {
  std::string by_count, by_eos;
  const EngineOptions options = SmallOptions();
  for (std::string* calls : {&by_count, &by_eos}) {
    Events events;
    Request request = SmallRequest(1, 5, 3);
    if (calls == &by_eos) request.eos_token_ids = {FakeExecutor::Continue(request)[1]};
    {
      Engine engine(options, std::make_unique<CallOrder>(MakeExecutor(options), *calls),
                    events.sink());
      ASSERT_TRUE(engine.Submit(request).ok());
      events.WaitForEnded(1);
      const auto deadline = steady_clock::now() + std::chrono::seconds(20);
      while (engine.Snapshot().seconds_since_progress != 0.0 && steady_clock::now() < deadline)
        std::this_thread::yield();
      EXPECT_EQ(engine.Snapshot().steps, depth() == 2 || calls == &by_count ? 3u : 2u)
          << "idle means that nothing runs";
    }  // the engine thread has ended
    EXPECT_EQ(events.Of(1).tokens, FakeExecutor::Continue(request));
  }
  EXPECT_EQ(by_count, depth() == 1 ? " L1 C1 L2 C2 L3 C3" : " L1 L2 C1 L3 C2 C3");
  EXPECT_EQ(by_eos, depth() == 1 ? " L1 C1 L2 C2" : " L1 L2 C1 L3 C2 C3")
      << "step 3 is already running when step 2 turns out to be the last";
}

TEST_P(EngineTest, RequestGetsItsTokensAndOneTerminalEvent) {
  Events events;
  const EngineOptions options = SmallOptions();
  Engine engine(options, MakeExecutor(options), events.sink());
  ASSERT_TRUE(engine.Submit(SmallRequest(1)).ok());
  events.WaitForEnded(1);
  EXPECT_EQ(events.Of(1).tokens, FakeExecutor::Continue(SmallRequest(1)));
  EXPECT_EQ(events.Of(1).finish, FinishReason::kLength);
}

TEST_P(EngineTest, StatisticsCountAnEventBeforeItIsDelivered) {
  Events events;
  const EngineOptions options = SmallOptions();
  Engine engine(options, MakeExecutor(options), events.sink());
  ASSERT_TRUE(engine.Submit(SmallRequest(1, 9, 7)).ok());
  events.WaitForEnded(1);
  const EngineStats stats = engine.Snapshot();
  EXPECT_EQ(stats.steps, 7u);
  EXPECT_EQ(stats.prompt_tokens, 9u);
  EXPECT_EQ(stats.generation_tokens, 7u);
  EXPECT_EQ(stats.num_finished(FinishReason::kLength), 1u);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.pages_used, 0);
  EXPECT_EQ(stats.pages_total, options.num_pages);
  EXPECT_EQ(stats.prefix_misses[static_cast<size_t>(MissReason::kNoPrefix)], 1u);
  const auto count = [](const auto& histogram) {
    uint64_t sum = 0;
    for (uint64_t bucket : histogram.counts) sum += bucket;
    return sum;
  };
  EXPECT_EQ(count(stats.queue_seconds), 1u);
  EXPECT_EQ(count(stats.time_to_first_token_seconds), 1u);
  EXPECT_EQ(count(stats.inter_token_seconds), 6u);
  EXPECT_EQ(count(stats.e2e_seconds), 1u);
  EXPECT_EQ(count(stats.prefill_seconds), 1u);
  EXPECT_EQ(count(stats.decode_seconds), 1u);
  EXPECT_EQ(count(stats.inference_seconds), 1u);
  EXPECT_EQ(count(stats.mean_token_seconds), 1u);
  EXPECT_EQ(count(stats.execute_seconds), 7u);
  EXPECT_EQ(stats.step_tokens.sum, 9 + 6);
}

TEST_P(EngineTest, ConcurrentRequestsGetTheTokensOfSeparateOnes) {
  Events events;
  EngineOptions options = SmallOptions();
  options.num_pages = 24;  // preemptions happen
  options.max_model_len = 96;
  Engine engine(options, MakeExecutor(options), events.sink());
  constexpr int kThreads = 6, kEach = 40;
  const auto make = [](RequestId id, int i) {
    Request request = SmallRequest(id, 1 + i % 20, 1 + i % 13);
    if (i % 3 == 0)
      request.eos_token_ids = {FakeExecutor::Continue(request)[request.max_tokens / 2]};
    return request;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const RequestId id = static_cast<RequestId>(t * kEach + i + 1);
        EXPECT_TRUE(engine.Submit(make(id, i)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  events.WaitForEnded(kThreads * kEach);
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kEach; ++i) {
      const RequestId id = static_cast<RequestId>(t * kEach + i + 1);
      EXPECT_EQ(events.Of(id).tokens, FakeExecutor::Continue(make(id, i)));
    }
  }
  EXPECT_EQ(engine.Snapshot().pages_used, 0);
}

TEST_P(EngineTest, ManyCancellationsReleaseEverything) {
  Events events;
  const EngineOptions options = SmallOptions();
  Engine engine(options, MakeExecutor(options), events.sink());
  constexpr int kThreads = 4, kEach = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const RequestId id = static_cast<RequestId>(t * kEach + i + 1);
        EXPECT_TRUE(engine.Submit(SmallRequest(id, 10, 50)).ok());
        if (i % 3 != 0) engine.Cancel(id);
        engine.Cancel(id);
        engine.Cancel(id / 2);
        engine.Cancel(id + 1000000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  events.WaitForEnded(kThreads * kEach);
  const EngineStats stats = engine.Snapshot();
  EXPECT_EQ(
      stats.num_finished(FinishReason::kCancelled) + stats.num_finished(FinishReason::kLength),
      static_cast<uint64_t>(kThreads * kEach));
  EXPECT_EQ(stats.pages_used, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.waiting_tokens, 0);
}

TEST_P(EngineTest, CancelledRequestEndsAfterTheRunningStep) {
  Events events;
  StepGate gate(StepGate::State::kClosed);
  const EngineOptions options = SmallOptions();
  Engine engine(options, MakeGatedExecutor(options, gate), events.sink());
  ASSERT_TRUE(engine.Submit(SmallRequest(1, 10, 50)).ok());
  gate.WaitForArrival();
  engine.Cancel(1);
  gate.Open();
  events.WaitForEnded(1);
  EXPECT_EQ(events.Of(1).finish, FinishReason::kCancelled);
  EXPECT_LE(events.Of(1).tokens.size(), 1u);
  EXPECT_EQ(engine.Snapshot().steps, static_cast<uint64_t>(depth()));
  EXPECT_EQ(engine.Snapshot().pages_used, 0);
}

TEST_P(EngineTest, CancellationForAStopStringCountsAsStop) {
  Events events;
  StepGate gate(StepGate::State::kClosed);
  const EngineOptions options = SmallOptions();
  Engine engine(options, MakeGatedExecutor(options, gate), events.sink());
  ASSERT_TRUE(engine.Submit(SmallRequest(1, 10, 50)).ok());
  gate.WaitForArrival();
  engine.Cancel(1, FinishReason::kStop);
  engine.Cancel(1);
  gate.Open();
  events.WaitForEnded(1);
  EXPECT_EQ(events.Of(1).finish, FinishReason::kStop);
  EXPECT_EQ(engine.Snapshot().num_finished(FinishReason::kStop), 1u);
  EXPECT_EQ(engine.Snapshot().num_finished(FinishReason::kCancelled), 0u);
}

TEST(EngineLimitsTest, FullQueueRefusesRequests) {
  Events events;
  StepGate gate(StepGate::State::kClosed);
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 1;
  options.max_waiting_requests = 3;
  options.max_waiting_tokens = 40;
  Engine engine(options, std::make_unique<FakeExecutor>(options, WithGate({}, gate)),
                events.sink());
  ASSERT_TRUE(engine.Submit(SmallRequest(1, 10, 2)).ok());
  gate.WaitForArrival();  // it runs, but counts as waiting until its first step ends: two more may
                          // wait
  ASSERT_TRUE(engine.Submit(SmallRequest(2, 10, 2)).ok());
  const Status too_many_tokens = engine.Submit(SmallRequest(3, 21, 2));
  EXPECT_EQ(too_many_tokens.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(
      too_many_tokens.message(),
      "20 prompt tokens wait already, 20 of this client; the limit is 40, an eighth of it kept for "
      "others; retry later");
  ASSERT_TRUE(engine.Submit(SmallRequest(4, 20, 2)).ok());
  const Status too_many = engine.Submit(SmallRequest(5, 1, 2));
  EXPECT_EQ(too_many.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(too_many.message(),
            "3 requests wait already, 3 of this client; the limit is 3, an eighth of it kept for "
            "others; retry later");
  const EngineStats stats = engine.Snapshot();
  EXPECT_EQ(stats.refused[static_cast<size_t>(RefusalReason::kTokensFull)], 1u);
  EXPECT_EQ(stats.refused[static_cast<size_t>(RefusalReason::kQueueFull)], 1u);
  EXPECT_EQ(stats.waiting, 3);
  EXPECT_EQ(stats.waiting_tokens, 40);
  gate.Open();
  events.WaitForEnded(3);
  EXPECT_EQ(engine.Snapshot().waiting, 0);
  ASSERT_TRUE(engine.Submit(SmallRequest(6, 60, 2)).ok())
      << "more than the limit by itself, but nothing waits";
  events.WaitForEnded(4);
}

TEST_P(EngineTest, RequestThatCanNeverFitIsRefusedAtOnce) {
  Events events;
  const EngineOptions options = SmallOptions();
  Engine engine(options, MakeExecutor(options), events.sink());
  const Status status = engine.Submit(SmallRequest(1, 100, 100));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.param(), "max_tokens");
  EXPECT_EQ(engine.Snapshot().refused[static_cast<size_t>(RefusalReason::kTooLong)], 1u);
}

TEST_P(EngineTest, DrainLetsRunningWorkFinishAndRefusesNewWork) {
  Events events;
  StepGate gate(StepGate::State::kClosed);
  const EngineOptions options = SmallOptions();
  Engine engine(options, MakeGatedExecutor(options, gate), events.sink());
  for (RequestId id = 1; id <= 20; ++id) ASSERT_TRUE(engine.Submit(SmallRequest(id)).ok());
  std::thread drain([&] { engine.Drain(steady_clock::now() + std::chrono::hours(1)); });
  EXPECT_TRUE(Eventually([&] { return engine.Snapshot().draining; }));
  EXPECT_EQ(engine.Submit(SmallRequest(21)).code(), StatusCode::kUnavailable);
  gate.Open();
  drain.join();
  EXPECT_EQ(events.ended(), 20u);
  for (RequestId id = 1; id <= 20; ++id) EXPECT_EQ(events.Of(id).finish, FinishReason::kLength);
  EXPECT_EQ(engine.Snapshot().refused[static_cast<size_t>(RefusalReason::kDraining)], 1u);
}

TEST_P(EngineTest, RequestsLeftAtTheDrainDeadlineEndWithAnError) {
  Events events;
  StepGate gate(StepGate::State::kClosed);
  EngineOptions options = SmallOptions();
  options.drain_grace_ms = 0;
  Engine engine(options, MakeGatedExecutor(options, gate), events.sink());
  for (RequestId id = 1; id <= 12; ++id) ASSERT_TRUE(engine.Submit(SmallRequest(id, 5, 100)).ok());
  gate.WaitForArrival();
  engine.Drain(steady_clock::now());  // returns although the step hangs
  EXPECT_EQ(events.ended(), 0u);
  gate.Open();
  events.WaitForEnded(12);
  for (RequestId id = 1; id <= 12; ++id) {
    EXPECT_EQ(events.Of(id).finish, FinishReason::kError);
    EXPECT_EQ(events.Of(id).error.code(), StatusCode::kUnavailable);
  }
  EXPECT_EQ(engine.Snapshot().steps, static_cast<uint64_t>(depth()));
  EXPECT_EQ(engine.Snapshot().pages_used, 0);
}

TEST_P(EngineTest, DestructionCancelsRemainingRequests) {
  Events events;
  const EngineOptions options = SmallOptions();
  {
    Engine engine(options, MakeExecutor(options), events.sink());
    for (RequestId id = 1; id <= 30; ++id)
      ASSERT_TRUE(engine.Submit(SmallRequest(id, 20, 100)).ok());
  }
  EXPECT_EQ(events.ended(), 30u);
  {
    Engine idle(options, MakeExecutor(options), events.sink());
  }
}

TEST_P(EngineTest, ExecutorThatThrowsEndsEveryRequestWithAnError) {
  Events events;
  const EngineOptions options = SmallOptions();
  FakeExecutor::Options fake;
  fake.on_collect = [](uint64_t step) {
    if (step == 4) throw std::runtime_error("device lost");
  };
  Engine engine(options, MakeExecutor(options, fake), events.sink());
  int accepted = 0;
  for (RequestId id = 1; id <= 20; ++id) accepted += engine.Submit(SmallRequest(id, 20, 50)).ok();
  events.WaitForEnded(accepted);
  for (RequestId id = 1; id <= static_cast<RequestId>(accepted); ++id) {
    EXPECT_EQ(events.Of(id).finish, FinishReason::kError);
    EXPECT_EQ(events.Of(id).error.code(), StatusCode::kUnavailable);
  }
  EXPECT_EQ(engine.Submit(SmallRequest(100)).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(engine.Snapshot().failed);
  EXPECT_EQ(engine.Snapshot().num_finished(FinishReason::kError), static_cast<uint64_t>(accepted));
  EXPECT_EQ(engine.Snapshot().running, 0);
  EXPECT_EQ(engine.failure().code(), StatusCode::kInternal);
  EXPECT_EQ(engine.failure().message(), "device lost");
  engine.Drain(steady_clock::now() + std::chrono::hours(1));  // returns: nothing lives
}

TEST_P(EngineTest, LostDeviceIsTheFailureThatTheEngineReports) {
  Events events;
  const EngineOptions options = SmallOptions();
  FakeExecutor::Options fake;
  fake.on_collect = [](uint64_t step) {
    if (step == 2) throw DeviceError(Status(StatusCode::kDeviceLost, "cuda:1 fell off"));
  };
  Engine engine(options, MakeExecutor(options, fake), events.sink());
  EXPECT_TRUE(engine.failure().ok());
  ASSERT_TRUE(engine.Submit(SmallRequest(1, 20, 50)).ok());
  events.WaitForEnded(1);
  EXPECT_EQ(events.Of(1).error.code(), StatusCode::kUnavailable);
  EXPECT_EQ(engine.failure().code(), StatusCode::kDeviceLost);
  EXPECT_EQ(engine.failure().message(), "cuda:1 fell off");
}

TEST_P(EngineTest, HungStepIsVisibleAndFailEndsItsRequests) {
  Events events;
  StepGate gate(StepGate::State::kClosed);
  const EngineOptions options = SmallOptions();
  Engine engine(options, MakeGatedExecutor(options, gate), events.sink());
  EXPECT_EQ(engine.Snapshot().seconds_since_progress, 0.0) << "idle";
  ASSERT_TRUE(engine.Submit(SmallRequest(1)).ok());
  ASSERT_TRUE(engine.Submit(SmallRequest(2)).ok());
  gate.WaitForArrival();
  const double first = engine.Snapshot().seconds_since_progress;
  EXPECT_GT(first, 0.0);
  EXPECT_TRUE(Eventually([&] { return engine.Snapshot().seconds_since_progress > first; }));
  engine.Fail("no progress");
  EXPECT_EQ(events.ended(), 2u) << "while the step still hangs";
  EXPECT_EQ(events.Of(1).error.message(), "no progress");
  EXPECT_EQ(engine.Submit(SmallRequest(3)).code(), StatusCode::kUnavailable);
  gate.Open();  // the step returns; its tokens are dropped
  EXPECT_EQ(engine.Snapshot().num_finished(FinishReason::kError), 2u);
  EXPECT_EQ(engine.Snapshot().seconds_since_progress, 0.0);
}

TEST_P(EngineTest, IdleEngineReportsNoTimeSinceProgress) {
  Events events;
  const EngineOptions options = SmallOptions();
  Engine engine(options, MakeExecutor(options), events.sink());
  ASSERT_TRUE(engine.Submit(SmallRequest(1)).ok());
  events.WaitForEnded(1);
  EXPECT_TRUE(Eventually([&] { return engine.Snapshot().seconds_since_progress == 0.0; }));
}

TEST_P(EngineTest, NonFiniteRowEndsOnlyItsRequest) {
  Events events;
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 16;
  options.num_pages = 200;
  FakeExecutor::Options fake;
  fake.is_corrupt = [](RequestId id, int position) { return id == 5 && position == 8; };
  Engine engine(options, MakeExecutor(options, fake), events.sink());
  for (RequestId id = 1; id <= 16; ++id) ASSERT_TRUE(engine.Submit(SmallRequest(id)).ok());
  events.WaitForEnded(16);
  for (RequestId id = 1; id <= 16; ++id) {
    if (id == 5) {
      EXPECT_EQ(events.Of(id).error.code(), StatusCode::kInternal);
    } else {
      EXPECT_EQ(events.Of(id).tokens, FakeExecutor::Continue(SmallRequest(id)));
    }
  }
  EXPECT_EQ(engine.Snapshot().corrupted, 1u);
  EXPECT_EQ(engine.Snapshot().num_finished(FinishReason::kError), 1u);
}

}  // namespace
}  // namespace diffserve
