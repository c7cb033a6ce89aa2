// The checks of the other engine tests are worth what FakeExecutor notices.
#include "tests/testing/fake_executor.h"

#include <gtest/gtest.h>

namespace diffserve {
namespace {

using testing::FakeExecutor;

class FakeExecutorTest : public ::testing::Test {
 protected:
  FakeExecutorTest() : executor_(MakeOptions()) {
    for (RequestId id : {1, 2}) {
      Request request;
      request.id = id;
      request.prompt = {10, 11, 12, static_cast<int32_t>(20 + id), 30};
      request.max_tokens = 5;
      executor_.Begin(request);
    }
  }
  static EngineOptions MakeOptions() {
    EngineOptions options;
    options.page_size = 2;
    options.num_pages = 8;
    options.max_num_seqs = 2;
    options.max_num_batched_tokens = 8;
    return options;
  }
  static PlannedSequence Planned(RequestId id, int computed, int planned,
                                 std::vector<int32_t> pages) {
    const std::vector<int32_t> prompt = {10, 11, 12, static_cast<int32_t>(20 + id), 30};
    PlannedSequence sequence;
    sequence.request = id;
    sequence.num_computed = computed;
    sequence.num_planned = planned;
    sequence.samples = computed + planned == 5;
    sequence.tokens.assign(prompt.begin() + computed, prompt.begin() + computed + planned);
    sequence.pages = std::move(pages);
    return sequence;
  }
  void Run(std::vector<PlannedSequence> sequences) {
    executor_.Launch({.step = 1, .sequences = std::move(sequences)});
    executor_.Collect();
  }
  FakeExecutor executor_;
};

TEST_F(FakeExecutorTest, AcceptsALegalPlan) {
  EXPECT_NO_THROW(Run({Planned(1, 0, 4, {0, 1}), Planned(2, 0, 4, {2, 3})}));
  EXPECT_NO_THROW(Run({Planned(1, 4, 1, {0, 1, 4}), Planned(2, 4, 1, {0, 3, 5})}))
      << "the first two tokens are the same";
}

TEST_F(FakeExecutorTest, NoticesAPrefixOfOtherTokens) {
  Run({Planned(1, 0, 4, {0, 1})});
  EXPECT_THROW(Run({Planned(2, 4, 1, {0, 1, 4})}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesASlotThatWasNeverWritten) {
  EXPECT_THROW(Run({Planned(1, 4, 1, {0, 1, 2})}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesAPageThatSomebodyElseHasOverwritten) {
  Run({Planned(1, 0, 4, {0, 1})});
  Run({Planned(2, 0, 4, {2, 1})});
  EXPECT_THROW(Run({Planned(1, 4, 1, {0, 1, 3})}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesAWriteToAPageThatAnotherSequenceHolds) {
  Run({Planned(1, 0, 3, {0, 1})});
  EXPECT_THROW(Run({Planned(1, 3, 1, {0, 1}), Planned(2, 0, 4, {2, 1})}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesTooManyRows) {
  EXPECT_THROW(Run({Planned(1, 0, 5, {0, 1, 2}), Planned(2, 0, 4, {3, 4})}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesWrongTokens) {
  PlannedSequence planned = Planned(1, 0, 4, {0, 1});
  planned.tokens[2] = 99;
  EXPECT_THROW(Run({planned}), std::logic_error);
}

TEST_F(FakeExecutorTest, NoticesAPageTableOfTheWrongLength) {
  EXPECT_THROW(Run({Planned(1, 0, 4, {0, 1, 2})}), std::logic_error);
}

// With one step ahead: sequences 1 and 2 draw their first token in a step that is not collected
// yet.
class FakeExecutorAheadTest : public FakeExecutorTest {
 protected:
  FakeExecutorAheadTest() : ahead_(MakeOptions(), TwoSteps()) {
    for (RequestId id : {1, 2}) {
      Request request;
      request.id = id;
      request.prompt = {10, 11, 12, static_cast<int32_t>(20 + id), 30};
      request.max_tokens = 5;
      ahead_.Begin(request);
    }
    Launch({Planned(1, 0, 4, {0, 1}), Planned(2, 0, 4, {2, 3})});
    ahead_.Collect();
    Launch({Planned(1, 4, 1, {0, 1, 4}), Planned(2, 4, 1, {2, 3, 5})});
  }
  static FakeExecutor::Options TwoSteps() {
    FakeExecutor::Options options;
    options.depth = 2;
    return options;
  }
  void Launch(std::vector<PlannedSequence> sequences) {
    ahead_.Launch({.step = ++step_, .sequences = std::move(sequences)});
  }
  // A decode whose token is not known.
  static PlannedSequence Unknown(RequestId id, int computed, std::vector<int32_t> pages) {
    PlannedSequence planned;
    planned.request = id;
    planned.num_computed = computed;
    planned.num_planned = 1;
    planned.samples = true;
    planned.tokens = {kDrawnByStepBefore};
    planned.pages = std::move(pages);
    return planned;
  }
  FakeExecutor ahead_;
  uint64_t step_ = 0;
};

TEST_F(FakeExecutorAheadTest, ComputesWithTheTokenThatItHasDrawnItself) {
  Launch({Unknown(1, 5, {0, 1, 4}), Unknown(2, 5, {2, 3, 5})});
  Request request;
  request.prompt = {10, 11, 12, 21, 30};
  request.max_tokens = 5;
  const std::vector<int32_t> expected = FakeExecutor::Continue(request);
  EXPECT_EQ(ahead_.Collect().sequences[0].sample.token, expected[0]);
  EXPECT_EQ(ahead_.Collect().sequences[0].sample.token, expected[1]);
}

TEST_F(FakeExecutorAheadTest, NoticesAnUnknownTokenThatTheStepBeforeDidNotDraw) {
  EXPECT_THROW(Launch({Unknown(1, 4, {0, 1, 4})}), std::logic_error) << "a token of the prompt";
  EXPECT_THROW(Launch({Unknown(1, 6, {0, 1, 4, 6})}), std::logic_error)
      << "a token that nobody has drawn";
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

TEST_F(FakeExecutorAheadTest, NoticesAnEndWhileAStepContainsTheSequence) {
  EXPECT_THROW(ahead_.End(1), std::logic_error);
  ahead_.Collect();
  EXPECT_NO_THROW(ahead_.End(1));
}

TEST_F(FakeExecutorTest, NoticesASequenceWithoutBegin) {
  EXPECT_THROW(Run({Planned(3, 0, 4, {0, 1})}), std::logic_error);
}

}  // namespace
}  // namespace diffserve
