// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "engine/policy/request_fit.h"
#include "tests/testing/engine/scheduler_bench.h"

namespace diffserve {
namespace {

using testing::FakeExecutor;
using testing::MakeRequest;
using testing::SchedulerBench;
using testing::SmallEngine;

using PlannedTokens = std::map<RequestId, int>;

TEST(SchedulerTest, LongPromptIsComputedInChunksAndThenDecodes) {
  SchedulerBench bench(SmallEngine());
  bench.Add(MakeRequest(1, 40, 3));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 16}}));
  EXPECT_EQ(bench.plan[0].samples, 0);
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 16}}));
  EXPECT_TRUE(bench.events.empty());
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 8}}));
  EXPECT_EQ(bench.plan[0].samples, 1);
  EXPECT_EQ(bench.events.size(), 1u);
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 1}}));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 1}}));
  EXPECT_EQ(bench.ends.at(1).finish, FinishReason::kLength);
  EXPECT_EQ(bench.outputs[1], FakeExecutor::Continue(MakeRequest(1, 40, 3)));
  EXPECT_FALSE(bench.scheduler.HasWork());
}

TEST(SchedulerTest, DecodesComeFirstAndPromptsShareTheRestInOrderOfArrival) {
  SchedulerBench bench(SmallEngine());
  bench.Add(MakeRequest(1, 3, 9));
  bench.Step();
  bench.Add(MakeRequest(2, 6, 9, 50));
  bench.Add(MakeRequest(3, 7, 9, 100));
  bench.Add(MakeRequest(4, 7, 9, 150));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 1}, {2, 6}, {3, 7}, {4, 2}}));
  EXPECT_EQ(bench.plan[0].id, 1u);
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 1}, {2, 1}, {3, 1}, {4, 5}}));
  EXPECT_EQ(bench.plan[3].id, 4u);
}

TEST(SchedulerTest, StepsThatDecodeTakeFewerPromptTokensWhereTheirTimeIsLimited) {
  SchedulerBench bench(SmallEngine());
  bench.costs.mixed_tokens_max = 7;
  bench.Add(MakeRequest(1, 20, 9));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 16}})) << "no sequence waits for a token";
  bench.Step();
  bench.Add(MakeRequest(2, 30, 9, 50));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 1}, {2, 6}}));
  bench.costs.mixed_tokens_max = 0;
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 1}, {2, 4}})) << "a page";
  bench.costs.mixed_tokens_max = 1000;
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 1}, {2, 15}}));
}

TEST(SchedulerTest, ShortPromptDoesNotWaitForALongOneBeforeIt) {
  SchedulerBench bench(SmallEngine());
  bench.Add(MakeRequest(1, 60, 2));
  bench.Add(MakeRequest(2, 5, 2, 100));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 11}, {2, 5}}))
      << "half for the long one, all for the short one, the rest for the oldest";
  EXPECT_EQ(bench.outputs[2].size(), 1u);
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 15}, {2, 1}}));
}

TEST(SchedulerTest, OldestOfSeveralLongPromptsIsServed) {
  EngineOptions options = SmallEngine();
  options.num_pages = 100;
  SchedulerBench bench(options);
  for (RequestId id = 1; id <= 3; ++id)
    bench.Add(MakeRequest(id, 40, 2, 100 * static_cast<int>(id)));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 8}, {2, 4}, {3, 4}}))
      << "half, and a page for each of the others";
}

TEST(SchedulerTest, PrefixHitLeavesOneTokenToCompute) {
  SchedulerBench bench(SmallEngine());
  bench.Add(MakeRequest(1, 8, 1));
  bench.RunToEnd();
  bench.Add(MakeRequest(2, 8, 1));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{2, 4}}))
      << "both pages are cached, but the last token's logits are needed";
  EXPECT_EQ(bench.ends.at(2).cached_tokens, 4);
  bench.Add(MakeRequest(3, 9, 1));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{3, 1}}));
  EXPECT_EQ(bench.ends.at(3).cached_tokens, 8);
  EXPECT_EQ(bench.scheduler.counters().prefix_hits, 12u);
  EXPECT_EQ(bench.scheduler.counters().prefix_queries, 25u);
}

TEST(SchedulerTest, PagesWithGeneratedTokensAreCachedToo) {
  SchedulerBench bench(SmallEngine());
  bench.Add(MakeRequest(1, 3, 6));
  bench.RunToEnd();
  Request next = MakeRequest(2, 3, 2);
  std::vector<int32_t> prompt = next.prompt.ids();
  prompt.insert(prompt.end(), bench.outputs[1].begin(), bench.outputs[1].end());
  prompt.push_back(77);
  next.prompt = std::move(prompt);
  bench.Add(next);
  bench.Step();
  EXPECT_EQ(bench.plan[0].num_computed, 8)
      << "3 prompt tokens and the first 5 generated ones fill two pages";
}

TEST(SchedulerTest, PagesOfARunningSequenceAreShared) {
  SchedulerBench bench(SmallEngine());
  bench.Add(MakeRequest(1, 12, 20));
  bench.Step();
  bench.Add(MakeRequest(2, 13, 20));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 1}, {2, 1}}));
  EXPECT_EQ(bench.plan[0].pages[0], bench.plan[1].pages[0]);
  EXPECT_EQ(bench.scheduler.pool().holders(bench.plan[0].pages[2]), 2);
  bench.RunToEnd();
  EXPECT_EQ(bench.outputs[2], FakeExecutor::Continue(MakeRequest(2, 13, 20)));
}

TEST(SchedulerTest, ResetCacheIsEmptyAndRunningSequencesContinue) {
  SchedulerBench bench(SmallEngine());
  bench.Add(MakeRequest(1, 12, 20));
  bench.Step();
  bench.Add(MakeRequest(2, 13, 20));
  bench.Step();
  bench.scheduler.ResetPrefixCache({.memory = true});
  bench.scheduler.CheckInvariants();
  EXPECT_EQ(bench.scheduler.index().size(), 0);
  bench.Add(MakeRequest(3, 13, 1));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 1}, {2, 1}, {3, 13}}));
  bench.RunToEnd();
  EXPECT_EQ(bench.outputs[1], FakeExecutor::Continue(MakeRequest(1, 12, 20)));
  EXPECT_EQ(bench.outputs[2], FakeExecutor::Continue(MakeRequest(2, 13, 20)));
  EXPECT_EQ(bench.outputs[3], FakeExecutor::Continue(MakeRequest(3, 13, 1)));
  bench.scheduler.ResetPrefixCache({.memory = true});
  EXPECT_EQ(bench.scheduler.pool().num_cached(), 0);
  EXPECT_EQ(bench.scheduler.pool().num_free(), bench.scheduler.pool().num_pages());
}

TEST(SchedulerTest, ContinuationsOfOnePromptComputeThePromptOnce) {
  SchedulerBench bench(SmallEngine());
  for (RequestId id = 1; id <= 4; ++id) {
    Request request = MakeRequest(id, 14, 3);
    request.sequence = id;
    bench.Add(request);
  }
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 14}})) << "the others wait a step for its pages";
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 1}, {2, 2}, {3, 2}, {4, 2}}));
  EXPECT_EQ(bench.scheduler.counters().deferrals, 1u);
  EXPECT_EQ(bench.scheduler.pool().num_in_use(), 3 + 4);
}

TEST(SchedulerTest, SequenceDoesNotWaitForASlowlyComputedPrefix) {
  EngineOptions options = SmallEngine();
  options.num_pages = 100;
  options.max_num_batched_tokens = 32;
  SchedulerBench bench(options);
  bench.Add(MakeRequest(1, 60, 2, 100));
  bench.Add(MakeRequest(2, 60, 2));  // long and not the oldest: one page per step at most
  bench.Add(MakeRequest(3, 8, 2));
  EXPECT_EQ(bench.Step(), (PlannedTokens{{1, 20}, {2, 4}, {3, 8}}));
  EXPECT_EQ(bench.scheduler.counters().deferrals, 0u);
}

TEST(SchedulerTest, EqualPromptsThatRunTogetherEndUpOnTheSamePages) {
  EngineOptions options = SmallEngine();
  SchedulerBench bench(options);
  Request scored = MakeRequest(1, 8, 5);
  bench.Add(scored);
  bench.Step();
  scored.id = 2;
  scored.sampling.prompt_logprobs = 0;  // takes nothing from the cache, so it computes the same
                                        // pages again
  bench.Add(scored);
  bench.Step();
  bench.Step();
  EXPECT_EQ(bench.plan[0].pages[0], bench.plan[1].pages[0]);
  EXPECT_EQ(bench.plan[0].pages[1], bench.plan[1].pages[1]);
  EXPECT_NE(bench.plan[0].pages[2], bench.plan[1].pages[2]);
}

TEST(SchedulerTest, CountsReasonsOfPrefixMisses) {
  EngineOptions options = SmallEngine();
  SchedulerBench bench(options);
  const auto misses = [&](MissReason reason) {
    return bench.scheduler.counters().prefix_misses[static_cast<size_t>(reason)];
  };
  const auto run = [&](Request request) {
    bench.Add(std::move(request));
    bench.RunToEnd();
  };
  run(MakeRequest(1, 9, 1));
  EXPECT_EQ(misses(MissReason::kNoPrefix), 1u);
  run(MakeRequest(2, 4, 1));
  EXPECT_EQ(misses(MissReason::kPartialPage), 1u);
  Request salted = MakeRequest(3, 9, 1);
  salted.cache_salt = "tenant";
  run(salted);
  EXPECT_EQ(misses(MissReason::kNoPrefix), 2u);
  Request scored = MakeRequest(4, 9, 1);
  scored.sampling.prompt_logprobs = 1;
  run(scored);
  EXPECT_EQ(misses(MissReason::kDisabled), 1u);
  run(MakeRequest(5, 120, 8, 1000));  // takes every page
  run(MakeRequest(6, 9, 1));
  EXPECT_EQ(misses(MissReason::kEvicted), 1u);
}

TEST(SchedulerTest, PreemptsTheYoungestWhenNoPageIsFree) {
  EngineOptions options = SmallEngine();
  options.num_pages = 8;
  options.max_model_len = 32;
  SchedulerBench bench(options);
  for (RequestId id = 1; id <= 3; ++id)
    bench.Add(MakeRequest(id, 4, 20, 100 * static_cast<int>(id)));
  bench.Step();
  ASSERT_EQ(bench.scheduler.running().size(), 3u);
  while (bench.scheduler.counters().preemptions == 0) bench.Step();
  ASSERT_EQ(bench.scheduler.queue().num_waiting(), 1);
  EXPECT_EQ(bench.scheduler.queue().Next()->request.id, 3u);
  EXPECT_EQ(bench.scheduler.running().front()->request.id, 1u);
  bench.RunToEnd();
  for (RequestId id = 1; id <= 3; ++id) {
    EXPECT_EQ(bench.outputs[id],
              FakeExecutor::Continue(MakeRequest(id, 4, 20, 100 * static_cast<int>(id))));
    EXPECT_EQ(bench.ends.at(id).finish, FinishReason::kLength)
        << "preemption never fails a request";
  }
}

TEST(SchedulerTest, PreemptionsOfOneSequenceAreBounded) {
  for (int limit : {0, 1, 2}) {
    EngineOptions options = SmallEngine();
    options.num_pages = 12;
    options.page_size = 1;
    options.max_model_len = 12;
    options.enable_prefix_caching = false;
    options.max_preemptions_per_sequence = limit;
    SchedulerBench bench(options);
    for (RequestId id = 1; id <= 12; ++id) bench.Add(MakeRequest(id, 1, 11, static_cast<int>(id)));
    int most = 0;
    while (bench.scheduler.HasWork()) {
      bench.Step();
      for (const Sequence* sequence : bench.scheduler.queue().ByArrival())
        most = std::max(most, sequence->preemptions);
    }
    EXPECT_EQ(most, limit);
    EXPECT_EQ(bench.ends.size(), 12u);
  }
}

TEST(SchedulerTest, CancelledSequenceFreesItsPagesAtOnce) {
  EngineOptions options = SmallEngine();
  options.enable_prefix_caching = false;
  SchedulerBench bench(options);
  bench.Add(MakeRequest(1, 12, 9));
  bench.Add(MakeRequest(2, 12, 9, 50));
  bench.Step();
  EXPECT_GT(bench.scheduler.pool().num_in_use(), 3);
  const auto event = bench.scheduler.End(1, FinishReason::kCancelled, Status());
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->finish, FinishReason::kCancelled);
  EXPECT_FALSE(bench.scheduler.End(1, FinishReason::kCancelled, Status()).has_value());
  EXPECT_EQ(bench.scheduler.running().size(), 1u);
  bench.RunToEnd();
  EXPECT_EQ(bench.scheduler.pool().num_free(), options.num_pages);
}

TEST(SchedulerTest, EosAndStopIdsEndASequence) {
  const Request plain = MakeRequest(1, 5, 12);
  const std::vector<int32_t> outputs = FakeExecutor::Continue(plain);
  const auto run = [&](Request request) {
    SchedulerBench bench(SmallEngine());
    bench.Add(request);
    bench.RunToEnd();
    return std::pair(bench.ends.at(request.id), bench.outputs[request.id]);
  };
  Request request = plain;
  request.eos_token_ids = {outputs[3]};
  auto [end, tokens] = run(request);
  EXPECT_EQ(end.finish, FinishReason::kStop);
  EXPECT_EQ(end.stop_token, -1);
  EXPECT_EQ(tokens, std::vector<int32_t>(outputs.begin(), outputs.begin() + 4))
      << "the end token itself is reported";

  request.sampling.ignore_eos = true;
  EXPECT_EQ(run(request).second, outputs);
  request.sampling.stop_token_ids = {outputs[5]};
  std::tie(end, tokens) = run(request);
  EXPECT_EQ(end.stop_token, outputs[5]);
  EXPECT_EQ(tokens.size(), 6u);

  request.sampling.min_tokens = 8;
  std::tie(end, tokens) = run(request);
  EXPECT_GE(tokens.size(), 9u);
  for (int i = 0; i < 8; ++i)
    EXPECT_NE(tokens[i], outputs[5]) << "a stop id is not drawn before min_tokens";
}

TEST(SchedulerTest, PromptLogprobsAreTheSameInChunksAndAfterPreemption) {
  EngineOptions options = SmallEngine();
  options.num_pages = 12;
  options.max_model_len = 48;
  options.max_num_batched_tokens = 2;
  SchedulerBench bench(options);
  bench.Add(MakeRequest(1, 4, 40));
  Request scored = MakeRequest(2, 30, 4, 60);
  scored.sampling.prompt_logprobs = 2;
  Request only_scored = MakeRequest(3, 13, 0, 60);
  only_scored.sampling.prompt_logprobs = 0;
  bench.Add(scored);
  bench.Add(only_scored);
  bench.RunToEnd();
  EXPECT_GT(bench.scheduler.counters().preemptions, 0u);
  for (const Request& request : {scored, only_scored}) {
    std::vector<float> scores;
    for (const TokenEvent& event : bench.events) {
      if (event.request != request.id) continue;
      for (const SampleResult& score : event.prompt_logprobs) scores.push_back(score.logprob);
    }
    EXPECT_EQ(scores, FakeExecutor::PromptScores(request));
  }
  EXPECT_TRUE(bench.outputs[3].empty());
  EXPECT_EQ(bench.ends.at(3).finish, FinishReason::kLength);
}

TEST(SchedulerTest, NonFiniteRowEndsOnlyItsRequest) {
  FakeExecutor::Options fake;
  fake.is_corrupt = [](RequestId id, int position) { return id == 2 && position == 14; };
  SchedulerBench bench(SmallEngine(), fake);
  for (RequestId id = 1; id <= 3; ++id)
    bench.Add(MakeRequest(id, 10, 10, 30 * static_cast<int>(id)));
  bench.RunToEnd();
  EXPECT_EQ(bench.ends.at(2).finish, FinishReason::kError);
  EXPECT_EQ(bench.ends.at(2).error.code(), StatusCode::kInternal);
  EXPECT_EQ(bench.ends.at(2).error.message(), "the model produced non-finite logits");
  for (RequestId id : {1, 3}) {
    EXPECT_EQ(bench.outputs[id],
              FakeExecutor::Continue(MakeRequest(id, 10, 10, 30 * static_cast<int>(id))));
  }
  EXPECT_EQ(bench.scheduler.counters().corrupted, 1u);
  bench.Add(MakeRequest(4, 10, 1, 60));
  bench.Step();
  EXPECT_EQ(bench.plan[0].num_computed, 0) << "nothing of the broken sequence is cached";
  bench.Add(MakeRequest(5, 10, 1, 30));
  bench.Step();
  EXPECT_EQ(bench.plan[0].num_computed, 8) << "the others' pages are";
}

TEST(SchedulerTest, AdmissionProvesThatARequestFits) {
  EngineOptions options = SmallEngine();  // 128 slots
  options.max_model_len = 100;
  EXPECT_TRUE(CheckFits(options, MakeRequest(1, 60, 40)).ok());
  const Status too_long = CheckFits(options, MakeRequest(1, 60, 41));
  EXPECT_EQ(too_long.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(too_long.param(), "max_tokens");
  EXPECT_EQ(too_long.message(),
            "the maximum context length is 100 tokens, but 101 were requested (60 in the prompt, "
            "41 in max_tokens)");
  EXPECT_EQ(CheckFits(options, MakeRequest(1, 100, 1)).param(), "prompt");
  EXPECT_EQ(CheckFits(options, MakeRequest(1, 60, 2147483647)).param(), "max_tokens");
  EXPECT_EQ(CheckFits(options, MakeRequest(1, 0, 1)).param(), "prompt");
  EXPECT_EQ(CheckFits(options, MakeRequest(1, 5, 0)).param(), "max_tokens");
  EXPECT_EQ(CheckFits(options, MakeRequest(1, 5, -1)).param(), "max_tokens");

  options.max_model_len = 1000;
  EXPECT_TRUE(CheckFits(options, MakeRequest(1, 100, 29)).ok())
      << "the last token is never computed: 128 slots";
  EXPECT_EQ(CheckFits(options, MakeRequest(1, 100, 30)).param(), "max_tokens");
  EXPECT_EQ(CheckFits(options, MakeRequest(1, 129, 1)).param(), "prompt");
  SchedulerBench bench(options);
  bench.Add(MakeRequest(1, 100, 29));
  bench.RunToEnd();
  EXPECT_EQ(bench.outputs[1].size(), 29u);
}

TEST(SchedulerTest, EqualCallsGiveEqualPlans) {
  std::vector<std::vector<testing::PlannedCopy>> plans[2];
  for (auto& steps : plans) {
    EngineOptions options = SmallEngine();
    options.num_pages = 14;
    options.max_model_len = 56;
    SchedulerBench bench(options);
    for (RequestId id = 1; id <= 6; ++id)
      bench.Add(MakeRequest(id, 5 + 3 * static_cast<int>(id), 9, static_cast<int>(id % 2)));
    while (bench.scheduler.HasWork()) {
      bench.Step();
      steps.push_back(bench.plan);
    }
  }
  EXPECT_EQ(plans[0], plans[1]);
}

}  // namespace
}  // namespace diffserve
