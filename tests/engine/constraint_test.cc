// SPDX-License-Identifier: Apache-2.0
// The Scheduler with constrained sequences.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/testing/engine/fake_constraint.h"
#include "tests/testing/engine/scheduler_bench.h"

namespace diffserve {
namespace {

using testing::FakeConstraint;
using testing::FakeExecutor;
using testing::MakeRequest;
using testing::SchedulerBench;
using testing::SmallEngine;

Request Constrained(RequestId id, int max_tokens, FakeConstraint::Options options) {
  Request request = MakeRequest(id, 6, max_tokens, 10 * static_cast<int>(id));
  request.eos_token_ids = {2};
  options.ends = request.eos_token_ids;
  request.constraint = std::make_shared<FakeConstraint>(std::move(options));
  return request;
}

int NumAccepted(const Request& request) {
  return static_cast<const FakeConstraint&>(*request.constraint).num_accepted();
}

TEST(ConstraintTest, ConstraintAcceptsEveryDrawnTokenExceptTheLast) {
  const Request request = Constrained(1, 12, {.seed = 8, .one_of = 2});
  const std::vector<int32_t> expected = FakeExecutor::Continue(request);
  SchedulerBench bench(SmallEngine());
  bench.Add(request);
  bench.RunToEnd();
  EXPECT_EQ(bench.outputs.at(1), expected);
  EXPECT_EQ(NumAccepted(request), static_cast<int>(expected.size()) - 1);
}

TEST(ConstraintTest, SequenceStopsWhereOnlyEosIsAllowed) {
  const Request request = Constrained(1, 50, {.one_of = 2, .ends_after = 5});
  SchedulerBench bench(SmallEngine());
  bench.Add(request);
  bench.RunToEnd();
  EXPECT_EQ(bench.ends.at(1).finish, FinishReason::kStop);
  EXPECT_EQ(bench.outputs.at(1).back(), 2);
  EXPECT_LE(bench.outputs.at(1).size(), 6u);
}

TEST(ConstraintTest, ConstraintErrorEndsOnlyItsSequence) {
  for (const bool at_fill : {true, false}) {
    SchedulerBench bench(SmallEngine());
    FakeConstraint::Options options = {.one_of = 1};
    (at_fill ? options.fill_fails_after : options.accept_fails_after) = 3;
    Request request = Constrained(1, 50, options);
    request.sampling.ignore_eos = true;  // so that it meets the error
    const Request other = MakeRequest(2, 6, 8, 40);
    bench.Add(request);
    bench.Add(other);
    bench.RunToEnd();
    EXPECT_EQ(bench.ends.at(1).finish, FinishReason::kError);
    EXPECT_EQ(bench.ends.at(1).error.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(bench.ends.at(1).error.param(), at_fill ? "fill" : "accept");
    EXPECT_EQ(bench.outputs.at(1).size(), at_fill ? 3u : 4u);
    EXPECT_EQ(bench.ends.at(2).finish, FinishReason::kLength);
    EXPECT_EQ(bench.outputs.at(2), FakeExecutor::Continue(other));
    EXPECT_EQ(bench.scheduler.pool().num_in_use(), 0);
    EXPECT_EQ(bench.scheduler.counters().corrupted, 0u);
  }
}

// So that clients do not ask again, and the server does not count it as a fault of its own.
TEST(ConstraintTest, ConstraintThatCanGoNoFurtherEndsTheAnswerAsALimitOfTokensDoes) {
  for (const bool at_fill : {true, false}) {
    SchedulerBench bench(SmallEngine());
    FakeConstraint::Options options = {.one_of = 1, .failure = StatusCode::kInternal};
    (at_fill ? options.fill_fails_after : options.accept_fails_after) = 3;
    Request request = Constrained(1, 50, options);
    request.sampling.ignore_eos = true;  // so that it meets the failure
    bench.Add(request);
    bench.RunToEnd();
    EXPECT_EQ(bench.ends.at(1).finish, FinishReason::kLength);
    EXPECT_EQ(bench.ends.at(1).error.code(), StatusCode::kInternal);
    EXPECT_EQ(bench.outputs.at(1).size(), at_fill ? 3u : 4u);
    EXPECT_EQ(bench.scheduler.counters().constraints_failed, 1u);
    EXPECT_EQ(bench.scheduler.counters().corrupted, 0u);
  }
}

TEST(ConstraintTest, UnreachableMinTokensAreReported) {
  SchedulerBench bench(SmallEngine());
  Request request = Constrained(1, 50, {.one_of = 1, .ends_after = 2});
  request.sampling.min_tokens = 10;
  bench.Add(request);
  bench.RunToEnd();
  EXPECT_EQ(bench.ends.at(1).finish, FinishReason::kError);
  EXPECT_EQ(bench.ends.at(1).error.param(), "min_tokens");
  EXPECT_EQ(bench.outputs.at(1).size(), 2u);
}

// With an executor that takes two steps.
TEST(ConstraintTest, ConstrainedSequenceIsPlannedOnlyAfterItsDrawIsKnown) {
  for (const bool constrained : {true, false}) {
    Scheduler scheduler(SmallEngine());
    FakeExecutor executor(SmallEngine(), {.depth = 2});
    Request request = Constrained(1, 5, {.one_of = 1});
    if (!constrained) request.constraint = nullptr;
    scheduler.Add(request);
    executor.Launch(scheduler.Plan());
    EXPECT_EQ(scheduler.Plan().sequences.empty(), constrained);
    if (!constrained) continue;
    scheduler.Commit(executor.Collect());
    EXPECT_EQ(scheduler.Plan().sequences.size(), 1u);
  }
}

}  // namespace
}  // namespace diffserve
