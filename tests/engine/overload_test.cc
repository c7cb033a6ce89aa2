// SPDX-License-Identifier: Apache-2.0
// Overload: more requests arrive than the engine can serve. The real EngineLoop and Inbox run over
// a FakeExecutor and a virtual clock, so nothing depends on the machine's speed.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "engine/engine_loop.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/watched_executor.h"

namespace diffserve {
namespace {

using testing::FakeExecutor;
using testing::MakeRequest;
using testing::WatchedExecutor;

TimePoint AtSeconds(double seconds) {
  return TimePoint(
      std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds)));
}

constexpr double kWait = 1;  // seconds that a request may wait
constexpr int kSeats = 16, kPrompt = 32, kAnswer = 64;

struct Load {
  uint64_t client = 1;
  double rate = 0;            // arrivals per second, at random times
  double begin = 0, end = 0;  // seconds
};

// A server with its clients.
class Overload {
 public:
  struct Options {
    std::vector<Load> loads;
    double wait = kWait;
    double text_seconds = 0;      // from arrival to submission
    bool random_lengths = false;  // answers end at random, after kAnswer tokens on average
    std::function<double(double)> slowness = [](double) { return 1; };  // of a step, over time
    int depth = 1;
  };

  explicit Overload(Options options)
      : options_(std::move(options)),
        inbox_(Engine(), [this] { return AtSeconds(now_); }),
        loop_(Engine(), Executor(), inbox_, World()) {
    for (const Load& load : options_.loads) Expect(load.begin, [this, load] { Arrive(load); });
  }

  // Runs until `seconds`, or until nothing is left to do.
  void RunUntil(double seconds) {
    while (now_ < seconds) {
      while (loop_.idle() && num_submitted_ == 0 && now_ < seconds) {
        if (events_.empty()) return;
        AdvanceTo(events_.begin()->first);
      }
      num_submitted_ = 0;
      if (now_ < seconds) loop_.Turn();
    }
  }
  // Keeps `answers` requests in the engine.
  void KeepBusy(int answers) {
    closed_ = true;
    for (int i = 0; i < answers; ++i) Submit(Request());
  }

  struct Count {
    int arrived = 0, refused = 0, refused_later = 0, finished = 0;
    int64_t tokens = 0;
    double longest_wait = 0, last_refused_later = 0;
  };
  Count& Of(uint64_t client) { return counts_[client]; }
  Count Sum() const {
    Count sum;
    for (const auto& [client, count] : counts_) {
      sum.arrived += count.arrived;
      sum.refused += count.refused;
      sum.refused_later += count.refused_later;
      sum.finished += count.finished;
      sum.tokens += count.tokens;
      sum.longest_wait = std::max(sum.longest_wait, count.longest_wait);
      sum.last_refused_later = std::max(sum.last_refused_later, count.last_refused_later);
    }
    return sum;
  }

 private:
  struct Live {
    uint64_t client = 0;
    double arrival = 0;
    bool started = false;
  };

  static EngineOptions Engine() {
    EngineOptions options;
    options.page_size = 16;
    options.num_pages = 1024;
    options.max_model_len = 1024;
    options.max_num_seqs = kSeats;
    options.max_num_batched_tokens = 256;
    options.enable_prefix_caching = false;
    return options;
  }
  std::unique_ptr<diffserve::Executor> Executor() {
    return std::make_unique<WatchedExecutor>(
        FakeExecutor(Engine(), {.depth = options_.depth}),
        [this](const StepPlan& plan) {
          steps_.push_back(plan.num_tokens());
          for (const PlannedSequence& sequence : plan.sequences) {
            Live& live = live_.at(sequence.id());
            if (std::exchange(live.started, true)) continue;
            double& longest = Of(live.client).longest_wait;
            longest = std::max(longest, now_ - live.arrival);
          }
        },
        [this] {
          const double seconds = 0.01 + 0.00005 * steps_.front();
          steps_.pop_front();
          AdvanceTo(now_ + options_.slowness(now_) * seconds);
        });
  }
  EngineLoop::World World() {
    return {.now = [this] { return AtSeconds(now_); },
            .deliver = [this](const TokenEvent& event) { Take(event); },
            .publish = [](const EngineStats&) {},
            .kv_events = nullptr};
  }

  void Expect(double at, std::function<void()> event) { events_.emplace(at, std::move(event)); }
  void AdvanceTo(double seconds) {
    while (!events_.empty() && events_.begin()->first <= seconds) {
      const auto event = events_.extract(events_.begin());
      now_ = std::max(now_, event.key());
      event.mapped()();
    }
    now_ = std::max(now_, seconds);
  }

  void Arrive(const Load& load) {
    const double next = now_ + std::exponential_distribution<>(load.rate)(random_);
    if (next < load.end) Expect(next, [this, load] { Arrive(load); });
    ++Of(load.client).arrived;
    auto place = inbox_.Announce(load.client, AtSeconds(now_ + options_.wait));
    if (!place.ok()) {
      ++Of(load.client).refused;
      return;
    }
    Request request;
    request.client = load.client;
    request.arrival = AtSeconds(now_);
    request.start_by = AtSeconds(now_ + 2 * options_.wait);
    request.place = std::move(place).value();
    Expect(now_ + options_.text_seconds, [this, request]() mutable { Submit(std::move(request)); });
  }

  void Submit(Request request) {
    request.id = ++last_id_;
    request.prompt = MakeRequest(last_id_, kPrompt, kAnswer, static_cast<int>(last_id_)).prompt;
    request.max_tokens = kAnswer;
    request.sampling.temperature = 1;
    request.sampling.seed = last_id_;
    if (options_.random_lengths) {
      request.max_tokens = 12 * kAnswer;
      for (int token = 0; token < 256; token += kAnswer) request.eos_token_ids.push_back(token);
    }
    live_[last_id_] = {.client = request.client, .arrival = now_};
    if (inbox_.Submit(std::move(request)).ok())
      ++num_submitted_;
    else
      RefuseLater(Of(live_.at(last_id_).client));
  }

  void RefuseLater(Count& count) {
    ++count.refused_later;
    count.last_refused_later = now_;
  }

  void Take(const TokenEvent& event) {
    Count& count = Of(live_.at(event.request).client);
    count.tokens += std::ssize(event.tokens);
    if (event.finish == FinishReason::kNone) return;
    inbox_.Finish(event.request);
    if (event.finish == FinishReason::kError)
      RefuseLater(count);
    else
      ++count.finished;
    if (closed_) Submit(Request());
  }

  const Options options_;
  double now_ = 0;
  std::mt19937_64 random_{1};
  std::deque<int> steps_;  // tokens of those that run
  std::map<RequestId, Live> live_;
  std::map<uint64_t, Count> counts_;
  RequestId last_id_ = 0;
  int num_submitted_ = 0;  // since the last turn
  bool closed_ = false;
  Inbox inbox_;
  EngineLoop loop_;
  std::multimap<double, std::function<void()>> events_;  // declared last: they hold places
};

struct OverloadKind {
  bool random_lengths = false;
  int depth = 1;
};

// Tokens per second if there is always a request to start.
double PeakOf(const OverloadKind& kind) {
  constexpr double kSeconds = 30;
  Overload closed({.loads = {}, .random_lengths = kind.random_lengths, .depth = kind.depth});
  closed.KeepBusy(2 * kSeats);
  closed.RunUntil(kSeconds);
  return static_cast<double>(closed.Sum().tokens) / kSeconds;
}

class OverloadTest : public ::testing::TestWithParam<OverloadKind> {
 protected:
  static constexpr double kSeconds = 40;

  Overload::Options Options(std::vector<Load> loads) {
    return {.loads = std::move(loads),
            .random_lengths = GetParam().random_lengths,
            .depth = GetParam().depth};
  }
  // `factor`: of the peak.
  Load Times(double factor, uint64_t client = 1) const {
    return {.client = client, .rate = factor * peak_ / kAnswer, .end = kSeconds};
  }
  double ShareOfPeak(const Overload::Count& count) const {
    return static_cast<double>(count.tokens) / kSeconds / peak_;
  }

  const double peak_ = PeakOf(GetParam());
};

TEST_P(OverloadTest, TenfoldLoadIsServedAsAtThePeakAndRefusedAtOnce) {
  Overload overload(Options({Times(10)}));
  overload.RunUntil(kSeconds);
  const Overload::Count count = overload.Sum();
  EXPECT_GT(ShareOfPeak(count), 0.98);
  EXPECT_EQ(count.refused_later, 0);
  EXPECT_GT(count.refused, 7 * count.finished);
  EXPECT_LT(count.longest_wait, 2 * kWait);
}

TEST_P(OverloadTest, BelowThePeakNothingIsRefused) {
  Overload overload(Options({Times(0.9)}));
  overload.RunUntil(kSeconds);
  EXPECT_GT(overload.Sum().finished, 600);
  EXPECT_EQ(overload.Sum().refused, 0);
  EXPECT_EQ(overload.Sum().refused_later, 0);
}

// As many requests arrive during the text work of one as there are seats.
TEST_P(OverloadTest, RequestsInTheirTextWorkCountAsWaiting) {
  Overload::Options options = Options({Times(10)});
  options.text_seconds = 0.07;
  Overload overload(options);
  overload.RunUntil(kSeconds);
  EXPECT_GT(ShareOfPeak(overload.Sum()), 0.98);
  EXPECT_LT(overload.Sum().last_refused_later, kWait) << "when no answer had ended yet";
}

// An answer takes about 0.7 s.
TEST_P(OverloadTest, RequestsMayWaitForLessThanTheTimeOfAnAnswer) {
  Overload::Options options = Options({Times(10)});
  options.wait = 0.2;
  Overload overload(options);
  overload.RunUntil(kSeconds);
  const Overload::Count count = overload.Sum();
  EXPECT_GT(ShareOfPeak(count), 0.96);
  EXPECT_LT(count.refused_later, count.refused / 100);
}

TEST_P(OverloadTest, EstimateFollowsStepsThatBecomeSlower) {
  Overload::Options options = Options({Times(10)});
  options.slowness = [](double seconds) { return seconds < kSeconds / 2 ? 1 : 1.5; };
  Overload overload(options);
  overload.RunUntil(kSeconds);
  EXPECT_GT(ShareOfPeak(overload.Sum()), (1 + 1 / 1.5) / 2 * 0.98);
  EXPECT_EQ(overload.Sum().refused_later, 0);
}

TEST_P(OverloadTest, EstimateFollowsStepsThatBecomeFaster) {
  Overload::Options options = Options({Times(10)});
  options.slowness = [](double seconds) { return seconds < kSeconds / 2 ? 1 : 0.5; };
  Overload overload(options);
  overload.RunUntil(kSeconds);
  EXPECT_GT(ShareOfPeak(overload.Sum()), 1.5 * 0.98);
  EXPECT_EQ(overload.Sum().refused_later, 0);
}

// Steps take half and one and a half of their time in turns, and many of both fit into the wait.
TEST_P(OverloadTest, WaitIsEstimatedFromStepsOfItsOwnLength) {
  constexpr double kLongWait = 5;
  Overload::Options options = Options({Times(10)});
  options.wait = kLongWait;
  options.slowness = [](double seconds) { return std::fmod(seconds, 1) < 0.5 ? 0.5 : 1.5; };
  Overload overload(options);
  overload.RunUntil(kSeconds);
  EXPECT_LT(overload.Sum().longest_wait, (GetParam().random_lengths ? 1.4 : 1.2) * kLongWait);
  EXPECT_EQ(overload.Sum().refused_later, 0);
}

TEST_P(OverloadTest, ClientWithinItsShareIsNeverRefused) {
  Overload overload(Options({Times(5, 1), Times(5, 2), Times(0.1, 3)}));
  overload.RunUntil(kSeconds);
  EXPECT_GT(ShareOfPeak(overload.Sum()), 0.98);
  EXPECT_EQ(overload.Of(3).refused + overload.Of(3).refused_later, 0);
  EXPECT_NEAR(ShareOfPeak(overload.Of(1)), ShareOfPeak(overload.Of(2)), 0.05);
  for (const uint64_t client : {1, 2})
    EXPECT_LT(overload.Of(client).refused_later, overload.Of(client).refused / 100) << client;
}

// What the first client was promised, it was promised for the whole server.
TEST_P(OverloadTest, ClientThatJoinsTakesItsHalf) {
  Load late = Times(10, 2);
  late.begin = kSeconds / 2;
  Overload overload(Options({Times(10, 1), late}));
  overload.RunUntil(kSeconds);
  EXPECT_GT(ShareOfPeak(overload.Sum()), 0.98);
  EXPECT_NEAR(ShareOfPeak(overload.Of(2)), 0.25, 0.03);
  for (const uint64_t client : {1, 2})
    EXPECT_LT(overload.Of(client).refused_later, overload.Of(client).refused / 100) << client;
}

INSTANTIATE_TEST_SUITE_P(Kinds, OverloadTest,
                         ::testing::Values(OverloadKind{false, 1}, OverloadKind{true, 1},
                                           OverloadKind{false, 2}, OverloadKind{true, 2}));

}  // namespace
}  // namespace diffserve
