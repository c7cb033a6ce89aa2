// SPDX-License-Identifier: Apache-2.0
// The output thread: what blocks and what does not, request ids, deadlines, and all endings at once
// over a real engine.
#include "engine/text/output_loop.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_executor.h"
#include "tests/testing/kernels/eventually.h"
#include "tests/testing/text/response_client.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

// A client that waits for the end.
class WaitingClient {
 public:
  explicit WaitingClient(size_t max_bytes = 1 << 20)
      : stream(std::make_shared<ResponseStream>(max_bytes, [this] {
          std::lock_guard lock(mutex_);
          notified_ = true;
          changed_.notify_all();
        })) {}
  ~WaitingClient() { stream->Close(); }

  Status WaitForDone() {
    for (;;) {
      while (auto event = stream->TryPop()) {
        if (auto* delta = std::get_if<ResponseDelta>(&*event)) num_tokens += delta->tokens.size();
        if (auto* done = std::get_if<ResponseDone>(&*event)) {
          EXPECT_FALSE(stream->TryPop()) << "nothing follows ResponseDone";
          return done->status;
        }
      }
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return notified_; });
      notified_ = false;
    }
  }

  const std::shared_ptr<ResponseStream> stream;
  size_t num_tokens = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
};

TokenizedRequest StreamedRequest(int continuations, int max_tokens) {
  TokenizedRequest tokenized;
  Request request = testing::MakeRequest(0, 8, max_tokens);
  tokenized.prompts.push_back({request.prompt, ""});
  for (int i = 0; i < continuations; ++i) {
    request.sequence = static_cast<uint64_t>(i);
    tokenized.continuations.push_back(request);
  }
  return tokenized;
}

// The engine's side is the test itself.
class OutputLoopTest : public ::testing::Test {
 protected:
  void Start(size_t capacity = 64) {
    loop_ = std::make_unique<OutputLoop>(
        *tokenizer_, capacity,
        OutputLoop::EngineCalls{.submit = [](const Request&) { return Status(); },
                                .cancel =
                                    [this](RequestId id, FinishReason) {
                                      std::lock_guard lock(mutex_);
                                      cancelled_.push_back(id);
                                    }});
  }
  std::unique_ptr<Tokenizer> tokenizer_ = LoadTokenizerFixture("byte_bpe");
  std::mutex mutex_;
  std::vector<RequestId> cancelled_;
  std::unique_ptr<OutputLoop> loop_;
};

TEST_F(OutputLoopTest, RunningResponsesGetAnErrorAndAreCancelledAtShutdown) {
  Start();
  WaitingClient client;
  loop_->Submit(loop_->Open({.request_id = "a", .stream = client.stream}), StreamedRequest(2, 5));
  loop_->Post(Event(1, {65}));
  loop_.reset();
  EXPECT_EQ(client.WaitForDone().code(), StatusCode::kUnavailable);
  EXPECT_EQ(client.num_tokens, 1u) << "what was posted before is delivered";
  EXPECT_EQ(cancelled_, (std::vector<RequestId>{1, 2}));
}

TEST_F(OutputLoopTest, RequestIdIsKnownUntilItsResponsesEnd) {
  Start();
  WaitingClient same[2], other;
  for (WaitingClient& client : same)
    loop_->Open({.owner = "key:0", .request_id = "same", .stream = client.stream});
  const ResponseId id = loop_->Open(
      {.owner = "key:0", .request_id = "other", .stream = other.stream});
  EXPECT_TRUE(loop_->EndByName("key:0", "same", Status(StatusCode::kCancelled, "by name")));
  EXPECT_FALSE(loop_->EndByName("key:0", "same", Status(StatusCode::kCancelled, "again")));
  for (WaitingClient& client : same) EXPECT_EQ(client.WaitForDone().message(), "by name");
  loop_->End(id, Status(StatusCode::kInternal, "by id"));
  EXPECT_EQ(other.WaitForDone().message(), "by id");
  EXPECT_FALSE(loop_->EndByName("key:0", "other", Status())) << "an id is unknown after its end";
}

TEST_F(OutputLoopTest, NamesOfDifferentOwnersAreDifferent) {
  Start();
  WaitingClient first, second;
  loop_->Open({.owner = "key:1", .request_id = "same", .stream = first.stream});
  loop_->Open({.owner = "key:11", .request_id = "same", .stream = second.stream});
  for (const char* const stranger : {"key:0", "key:111", "key:", "", "10.0.0.1"})
    EXPECT_FALSE(loop_->EndByName(stranger, "same", Status())) << stranger;
  EXPECT_FALSE(loop_->EndByName("key:1", "1same", Status()));
  EXPECT_TRUE(loop_->EndByName("key:11", "same", Status(StatusCode::kCancelled, "its own")));
  EXPECT_EQ(second.WaitForDone().message(), "its own");
  EXPECT_TRUE(loop_->EndByName("key:1", "same", Status(StatusCode::kCancelled, "the other")));
  EXPECT_EQ(first.WaitForDone().message(), "the other") << "and not ended before";
}

TEST_F(OutputLoopTest, DeadlinePassesWithoutAnyMessage) {
  Start();
  WaitingClient client;
  loop_->Open({.request_id = "a",
               .stream = client.stream,
               .deadline = Clock::now() + std::chrono::milliseconds(20)});
  EXPECT_EQ(client.WaitForDone().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(OutputLoopTest, FullOutboxBlocksOnlyTheEngineAndIsCounted) {
  std::mutex gate;
  gate.lock();
  auto stream = std::make_shared<ResponseStream>(1 << 20, [&] { std::lock_guard wait(gate); });
  Start(2);
  loop_->Submit(loop_->Open({.request_id = "a", .stream = stream}), StreamedRequest(1, 11));
  std::thread engine([&] {
    for (int i = 0; i < 10; ++i) loop_->Post(Event(1, {65}));
    loop_->Post(Event(1, {}, FinishReason::kLength));
  });
  EXPECT_TRUE(testing::Eventually([&] { return loop_->num_waits() > 0; }));
  WaitingClient client;  // the front end does not wait
  loop_->End(loop_->Open({.request_id = "b", .stream = client.stream}), Status());
  gate.unlock();
  EXPECT_TRUE(client.WaitForDone().ok());
  engine.join();
  loop_.reset();
  size_t events = 0;
  while (stream->TryPop()) ++events;
  EXPECT_EQ(events, 13u) << "the start, ten tokens, the finish and the end";
}

// Clients, the text work, cancellations, deadlines, slow readers and a failing engine at once: each
// response ends exactly once, and the engine is left with nothing.
TEST(OutputLoopEndingsTest, ResponsesOfManyThreadsEndOnceEach) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadTokenizerFixture("byte_bpe");
  EngineOptions options = testing::SmallEngine();
  options.num_pages = 256;
  std::unique_ptr<OutputLoop> output;
  Engine engine(options,
                std::make_unique<testing::FakeExecutor>(
                    options, testing::FakeExecutor::Options{.vocab_size = 200, .depth = 2}),
                [&](TokenEvent event) { output->Post(std::move(event)); });
  output = std::make_unique<OutputLoop>(*tokenizer, 8, CallsTo(engine));
  std::mutex mutex;
  std::map<StatusCode, int> ended;
  const auto serve = [&](uint32_t seed, int lost_in) {
    std::mt19937 random(seed);
    const auto pick = [&](int count) { return static_cast<int>(random() % uint32_t(count)); };
    for (int round = 0; round < 120; ++round) {
      if (round == lost_in) engine.Fail("the device is lost");
      const std::string name = "name-" + std::to_string(pick(6));
      WaitingClient client(pick(6) == 0 ? 1500 : 1 << 20);
      OpenedResponse opened{.owner = "us", .request_id = name, .stream = client.stream};
      if (pick(4) == 0) opened.deadline = Clock::now() + std::chrono::microseconds(pick(3000));
      const ResponseId id = output->Open(std::move(opened));
      if (pick(8) == 0) output->EndByName("us", name, Status(StatusCode::kCancelled, "by name"));
      if (pick(10) == 0) {
        output->End(id, Status(StatusCode::kInvalidArgument, "the text work failed"));
      } else {
        output->Submit(id, StreamedRequest(1 + pick(3), 1 + pick(60)));
      }
      if (pick(8) == 0) output->EndByName("us", name, Status(StatusCode::kCancelled, "by name"));
      if (pick(6) == 0) {
        client.stream->Close();
        output->End(id, Status(StatusCode::kCancelled, "the client went away"));
        continue;
      }
      const StatusCode code = client.WaitForDone().code();
      std::lock_guard lock(mutex);
      ++ended[code];
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) threads.emplace_back(serve, t, t == 0 ? 80 : -1);
  for (std::thread& thread : threads) thread.join();
  for (const StatusCode code :
       {StatusCode::kOk, StatusCode::kInvalidArgument, StatusCode::kUnavailable})
    EXPECT_GT(ended[code], 0);
  engine.Drain(Clock::now() + std::chrono::hours(1));  // returns: nothing lives
  output.reset();
}

}  // namespace
}  // namespace diffserve
