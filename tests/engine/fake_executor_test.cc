// SPDX-License-Identifier: Apache-2.0
// FakeExecutor notices illegal plans. The other engine tests rely on this.
#include "tests/testing/engine/fake_executor.h"

#include <gtest/gtest.h>

#include <span>
#include <stdexcept>

namespace diffserve {
namespace {

using testing::FakeExecutor;

EngineOptions Options() {
  EngineOptions options;
  options.page_size = 2;
  options.num_pages = 8;
  options.max_num_seqs = 2;
  options.max_num_batched_tokens = 8;
  return options;
}

Request RequestOf(RequestId id, int32_t third = 12) {
  Request request;
  request.id = id;
  request.prompt = std::vector<int32_t>{10, 11, third, static_cast<int32_t>(20 + id), 30};
  request.max_tokens = 5;
  return request;
}

const Request kRequests[] = {RequestOf(0), RequestOf(1), RequestOf(2)};

// A planned sequence and the pages that it refers to.
struct Planned {
  Planned(RequestId id, int computed, int planned, std::vector<int32_t> page_table)
      : pages(std::move(page_table)) {
    sequence.request = &kRequests[id];
    sequence.num_computed = computed;
    sequence.num_planned = planned;
    sequence.samples = computed + planned == 5 ? 1 : 0;
  }
  std::vector<int32_t> pages;
  PlannedSequence sequence;
};

// A decode whose token is not known.
Planned Unknown(RequestId id, int computed, std::vector<int32_t> pages) {
  static constexpr int32_t kOutputs[] = {kDrawnByStepBefore, kDrawnByStepBefore};
  Planned planned(id, computed, 1, std::move(pages));
  planned.sequence.samples = 1;
  if (computed >= 5) planned.sequence.outputs = std::span(kOutputs).first(computed - 4u);
  return planned;
}

StepPlan PlanOf(uint64_t step, const std::vector<Planned>& all) {
  StepPlan plan{step, {}};
  for (const Planned& planned : all) {
    plan.sequences.push_back(planned.sequence);
    plan.sequences.back().pages = planned.pages;
  }
  return plan;
}

class FakeExecutorTest : public ::testing::Test {
 protected:
  void Run(const std::vector<Planned>& sequences) {
    executor_.Launch(PlanOf(1, sequences));
    executor_.Collect();
  }
  FakeExecutor executor_{Options()};
};

TEST_F(FakeExecutorTest, AcceptsALegalPlan) {
  EXPECT_NO_THROW(Run({Planned(1, 0, 4, {0, 1}), Planned(2, 0, 4, {2, 3})}));
  EXPECT_NO_THROW(Run({Planned(1, 4, 1, {0, 1, 4}), Planned(2, 4, 1, {0, 3, 5})}))
      << "the first two tokens are the same";
}

TEST_F(FakeExecutorTest, NoticesDrawsThatDoNotFitWhatIsProposed) {
  static constexpr int32_t kProposed[] = {9, 9};
  Planned planned(1, 0, 7, {0, 1, 2, 3});
  planned.sequence.proposed = kProposed;
  for (const int samples : {0, 1, 2}) {
    planned.sequence.samples = samples;
    EXPECT_THROW(Run({planned}), std::logic_error) << samples;
  }
  planned.sequence.samples = 3;
  EXPECT_NO_THROW(Run({planned}));
  Planned in_the_prompt(2, 0, 4, {4, 5});
  in_the_prompt.sequence.proposed = kProposed;
  EXPECT_THROW(Run({in_the_prompt}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesAPrefixOfOtherTokens) {
  Run({Planned(1, 0, 4, {0, 1})});
  EXPECT_THROW(Run({Planned(2, 4, 1, {0, 1, 4})}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesASlotThatWasNeverWritten) {
  EXPECT_THROW(Run({Planned(1, 4, 1, {0, 1, 2})}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesAPageThatAnotherSequenceHasOverwritten) {
  Run({Planned(1, 0, 4, {0, 1})});
  Run({Planned(2, 0, 4, {2, 1})});
  EXPECT_THROW(Run({Planned(1, 4, 1, {0, 1, 3})}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesAWriteToAPageThatAnotherSequenceHolds) {
  Run({Planned(1, 0, 3, {0, 1})});
  EXPECT_THROW(Run({Planned(1, 3, 1, {0, 1}), Planned(2, 0, 4, {2, 1})}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesTooManyTokens) {
  EXPECT_THROW(Run({Planned(1, 0, 5, {0, 1, 2}), Planned(2, 0, 4, {3, 4})}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesWrongTokens) {
  Run({Planned(1, 0, 2, {0})});
  const Request other = RequestOf(1, 99);
  Planned planned(1, 2, 2, {0, 1});
  planned.sequence.request = &other;
  EXPECT_THROW(Run({planned}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesAPageTableOfTheWrongLength) {
  EXPECT_THROW(Run({Planned(1, 0, 4, {0, 1, 2})}), std::logic_error);
}

// One step ahead: sequences 1 and 2 draw their first tokens in a step that is not collected yet.
class FakeExecutorAheadTest : public FakeExecutorTest {
 protected:
  FakeExecutorAheadTest() {
    Launch({Planned(1, 0, 4, {0, 1}), Planned(2, 0, 4, {2, 3})});
    ahead_.Collect();
    Launch({Planned(1, 4, 1, {0, 1, 4}), Planned(2, 4, 1, {2, 3, 5})});
  }
  void Launch(const std::vector<Planned>& sequences) { ahead_.Launch(PlanOf(++step_, sequences)); }
  FakeExecutor ahead_{Options(), {.depth = 2}};
  uint64_t step_ = 0;
};

TEST_F(FakeExecutorAheadTest, ComputesWithTheTokenThatItHasDrawnItself) {
  Launch({Unknown(1, 5, {0, 1, 4}), Unknown(2, 5, {2, 3, 5})});
  const std::vector<int32_t> expected = FakeExecutor::Continue(kRequests[1]);
  EXPECT_EQ(ahead_.Collect()[0].samples.at(0).token, expected[0]);
  EXPECT_EQ(ahead_.Collect()[0].samples.at(0).token, expected[1]);
}

TEST_F(FakeExecutorAheadTest, NoticesAnUnknownTokenThatTheStepBeforeDidNotDraw) {
  EXPECT_THROW(Launch({Unknown(1, 6, {0, 1, 4, 6})}), std::logic_error)
      << "a token that the earlier step did not draw";
  ahead_.Collect();
  EXPECT_THROW(Launch({Unknown(1, 5, {0, 1, 4})}), std::logic_error)
      << "a token that was collected";
}

TEST_F(FakeExecutorAheadTest, NoticesATokenOfAnEarlierStep) {
  Launch({Unknown(1, 5, {0, 1, 4})});
  ahead_.Collect();
  EXPECT_THROW(Launch({Unknown(1, 6, {0, 1, 4, 6}), Unknown(2, 5, {2, 3, 5})}), std::logic_error);
}

TEST_F(FakeExecutorAheadTest, NoticesAStepTooMany) {
  Launch({Unknown(1, 5, {0, 1, 4})});
  EXPECT_THROW(Launch({Unknown(1, 6, {0, 1, 4, 6})}), std::logic_error);
}

}  // namespace
}  // namespace diffserve
