#include "engine/text/output_loop.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "tests/testing/text_fixture.h"

namespace diffserve {
namespace {

// A client: collects what its stream brings, and waits for the end.
class Client {
 public:
  explicit Client(size_t max_bytes = 1 << 20)
      : stream_(std::make_shared<ResponseStream>(max_bytes, [this] {
          std::lock_guard lock(mutex_);
          changed_.notify_all();
        })) {}
  ~Client() { stream_->Close(); }

  void WaitForDone() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      while (auto event = stream_->TryPop()) Take(std::move(*event));
      return !done.empty();
    });
  }

  const std::shared_ptr<ResponseStream>& stream() const { return stream_; }

  std::map<int, std::string> text;
  std::map<int, std::vector<TokenOutput>> tokens;
  std::map<int, ResponseDelta> last;
  std::vector<ResponsePromptLogprobs> prompt_logprobs;
  std::vector<ResponseDone> done;

 private:
  void Take(ResponseEvent event) {
    EXPECT_TRUE(done.empty()) << "nothing follows ResponseDone";
    if (auto* delta = std::get_if<ResponseDelta>(&event)) {
      EXPECT_FALSE(last.contains(delta->choice)) << "nothing follows a finish";
      EXPECT_TRUE(IsValidUtf8(delta->text));
      text[delta->choice] += delta->text;
      for (TokenOutput& token : delta->tokens) tokens[delta->choice].push_back(token);
      if (delta->finish != FinishReason::kNone) last[delta->choice] = *delta;
    } else if (auto* logprobs = std::get_if<ResponsePromptLogprobs>(&event)) {
      prompt_logprobs.push_back(*logprobs);
    } else {
      done.push_back(std::get<ResponseDone>(event));
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<ResponseStream> stream_;
};

class OutputLoopTest : public testing::Test {
 protected:
  OutputLoopTest() : tokenizer_(LoadTokenizerFixture("byte_bpe")) { Start(64); }

  void Start(size_t capacity) {
    loop_ = std::make_unique<OutputLoop>(*tokenizer_, capacity,
                                         [this](RequestId id, FinishReason as) {
                                           std::lock_guard lock(mutex_);
                                           cancelled_.push_back(id);
                                           cancelled_as_.push_back(as);
                                         });
  }
  std::vector<int32_t> Encode(const std::string& text) const {
    return tokenizer_->Encode(text, false).value();
  }
  static TokenEvent Event(RequestId id, std::vector<int32_t> tokens,
                          FinishReason finish = FinishReason::kNone) {
    TokenEvent event;
    event.request = id;
    event.tokens = std::move(tokens);
    event.finish = finish;
    return event;
  }
  // One event a token; `finish` with the last.
  void PostText(RequestId id, const std::string& text, FinishReason finish = FinishReason::kNone) {
    const std::vector<int32_t> ids = Encode(text);
    for (size_t i = 0; i < ids.size(); ++i)
      loop_->Post(Event(id, {ids[i]}, i + 1 == ids.size() ? finish : FinishReason::kNone));
  }
  ResponseSpec Spec(const Client& client, std::vector<RequestId> requests) const {
    ResponseSpec spec;
    spec.stream = client.stream();
    spec.prompt_tokens.assign(requests.size(), 10);
    spec.requests = std::move(requests);
    return spec;
  }
  std::vector<RequestId> cancelled() {
    std::lock_guard lock(mutex_);
    return cancelled_;
  }
  std::vector<FinishReason> cancelled_as() {
    std::lock_guard lock(mutex_);
    return cancelled_as_;
  }

  static constexpr int32_t kEos = 1;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::mutex mutex_;
  std::vector<RequestId> cancelled_;
  std::vector<FinishReason> cancelled_as_;  // parallel to cancelled_
  std::unique_ptr<OutputLoop> loop_;
};

TEST_F(OutputLoopTest, StreamsTheTextOfEachChoiceAndEndsOnce) {
  Client client;
  ResponseSpec spec = Spec(client, {11, 12, 13, 14});
  spec.choices_per_prompt = 2;
  spec.prompt_tokens = {5, 5, 7, 7};
  loop_->Register(spec);
  const std::vector<std::string> texts = {"Zürich 😀", "日本語", "one", "two words"};
  std::vector<std::vector<int32_t>> ids;
  size_t count = 0;
  for (const std::string& text : texts) ids.push_back(Encode(text)), count += ids.back().size();
  for (size_t i = 0; i < 30; ++i) {
    for (size_t c = 0; c < 4; ++c) {
      if (i >= ids[c].size()) continue;
      TokenEvent event = Event(
          11 + c, {ids[c][i]},
          i + 1 == ids[c].size() ? FinishReason::kLength : FinishReason::kNone);
      event.cached_tokens = i == 0 ? static_cast<int>(c) + 1 : 0;
      loop_->Post(event);
    }
  }
  client.WaitForDone();
  for (int c = 0; c < 4; ++c) {
    EXPECT_EQ(client.text[c], texts[static_cast<size_t>(c)]);
    EXPECT_EQ(client.last[c].finish, FinishReason::kLength);
    EXPECT_EQ(client.tokens[c].size(), ids[static_cast<size_t>(c)].size());
  }
  EXPECT_TRUE(client.done[0].status.ok());
  EXPECT_EQ(client.done[0].usage.prompt_tokens, 12);
  EXPECT_EQ(client.done[0].usage.cached_tokens, 1 + 3);
  EXPECT_EQ(client.done[0].usage.completion_tokens, static_cast<int64_t>(count));
  EXPECT_TRUE(cancelled().empty());
}

TEST_F(OutputLoopTest, AStopStringTruncatesCancelsAndSwallowsWhatFollows) {
  Client client;
  ResponseSpec spec = Spec(client, {1, 2});
  spec.stop = {"never", "dog. The"};
  loop_->Register(spec);
  const std::string text = "The lazy dog. The dog sleeps";
  PostText(1, text, FinishReason::kLength);
  PostText(2, "fine", FinishReason::kLength);
  client.WaitForDone();
  EXPECT_EQ(client.text[0], "The lazy ");
  EXPECT_EQ(client.last[0].finish, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(client.last[0].stop_reason), "dog. The");
  EXPECT_EQ(client.text[1], "fine");
  EXPECT_EQ(cancelled(), std::vector<RequestId>{1});
  EXPECT_EQ(cancelled_as(), std::vector<FinishReason>{FinishReason::kStop});
  // Usage: up to and including the token that completed the match.
  std::string seen;
  int64_t needed = 0;
  for (const int32_t id : Encode(text)) {
    if (seen.find("dog. The") != std::string::npos) break;
    seen += tokenizer_->TokenBytes(id);
    ++needed;
  }
  EXPECT_EQ(client.done[0].usage.completion_tokens,
            needed + static_cast<int64_t>(Encode("fine").size()));
  EXPECT_EQ(client.tokens[0].size(), static_cast<size_t>(needed));
}

TEST_F(OutputLoopTest, AStopStringIsShownIfAskedFor) {
  Client client;
  ResponseSpec spec = Spec(client, {1});
  spec.stop = {"lazy"};
  spec.include_stop_in_output = true;
  loop_->Register(spec);
  PostText(1, "The lazy dog.");
  client.WaitForDone();
  EXPECT_EQ(client.text[0], "The lazy");
}

TEST_F(OutputLoopTest, AStopStringInTheLastTokenIsNotCancelledAgain) {
  Client client;
  ResponseSpec spec = Spec(client, {1});
  spec.stop = {"dog"};
  loop_->Register(spec);
  loop_->Post(Event(1, Encode("the dog"), FinishReason::kLength));
  client.WaitForDone();
  EXPECT_EQ(client.text[0], "the ");
  EXPECT_EQ(client.last[0].finish, FinishReason::kStop);
  EXPECT_TRUE(cancelled().empty());
}

TEST_F(OutputLoopTest, StopStringsCountOnlyBeyondMinTokens) {
  Client client;
  ResponseSpec spec = Spec(client, {1});
  spec.stop = {"3"};
  spec.min_tokens = 4;
  loop_->Register(spec);
  for (const char* digit : {"1", "3", "1", "3", "1", "3", "1"})
    loop_->Post(Event(1, Encode(digit)));
  client.WaitForDone();
  EXPECT_EQ(client.text[0], "13131");
  EXPECT_EQ(client.done[0].usage.completion_tokens, 6);
}

TEST_F(OutputLoopTest, WhatIsHeldForAStopStringComesWithTheFinish) {
  Client client;
  ResponseSpec spec = Spec(client, {1});
  spec.stop = {"lazy cat"};
  loop_->Register(spec);
  PostText(1, "The lazy", FinishReason::kLength);
  client.WaitForDone();
  EXPECT_EQ(client.text[0], "The lazy");
}

TEST_F(OutputLoopTest, TheTokenThatEndsTheTextIsCountedAndNotShown) {
  for (const bool skip_special : {true, false}) {
    for (const bool include_stop : {true, false}) {
      Client client;
      ResponseSpec spec = Spec(client, {1, 2});
      spec.skip_special_tokens = skip_special;
      spec.include_stop_in_output = include_stop;
      loop_->Register(spec);
      const int32_t stop_id = Encode("x")[0];
      TokenEvent event = Event(1, {Encode("a")[0], stop_id}, FinishReason::kStop);
      event.stop_token = stop_id;
      loop_->Post(event);
      loop_->Post(Event(2, {Encode("b")[0], kEos}, FinishReason::kStop));
      client.WaitForDone();
      EXPECT_EQ(client.text[0], include_stop ? "ax" : "a");
      EXPECT_EQ(client.text[1], skip_special ? "b" : "b</s>");
      EXPECT_EQ(std::get<int32_t>(client.last[0].stop_reason), stop_id);
      EXPECT_EQ(client.last[1].stop_reason.index(), 0u);
      EXPECT_EQ(client.done[0].usage.completion_tokens, 4);
    }
  }
}

TEST_F(OutputLoopTest, AnIncompleteCharacterAtTheEndIsReplaced) {
  Client client;
  loop_->Register(Spec(client, {1}));
  const auto ids = Encode("aन");
  loop_->Post(Event(1, {ids[0], ids[1]}, FinishReason::kLength));
  client.WaitForDone();
  EXPECT_EQ(client.text[0], "a�");
}

TEST_F(OutputLoopTest, LogprobsCarryBytesAndAlternatives) {
  Client client;
  ResponseSpec spec = Spec(client, {1});
  spec.logprobs = true;
  loop_->Register(spec);
  const auto ids = Encode("न");
  TokenEvent event = Event(1, {ids[0]}, FinishReason::kLength);
  event.logprobs = {SampleResult{ids[0], true, -0.5f, {{ids[0], -0.5f}, {kEos, -1.5f}}}};
  event.prompt_logprobs = {SampleResult{ids[0], true, -2.0f, {{kEos, -0.25f}}}};
  loop_->Post(event);
  client.WaitForDone();
  ASSERT_EQ(client.tokens[0].size(), 1u);
  const TokenOutput& token = client.tokens[0][0];
  EXPECT_EQ(token.token.bytes[0], '\xE0');
  EXPECT_EQ(token.token.logprob, -0.5f);
  ASSERT_EQ(token.top.size(), 2u);
  EXPECT_EQ(token.top[1].bytes, "</s>");
  ASSERT_EQ(client.prompt_logprobs.size(), 1u);
  ASSERT_EQ(client.prompt_logprobs[0].tokens.size(), 2u);
  EXPECT_FALSE(client.prompt_logprobs[0].tokens[0]);
  EXPECT_EQ(client.prompt_logprobs[0].tokens[1]->token.logprob, -2.0f);
  EXPECT_EQ(client.prompt_logprobs[0].tokens[1]->top[0].logprob, -0.25f);
}

TEST_F(OutputLoopTest, AScoredPromptWithoutOutputEndsWithLength) {
  Client client;
  loop_->Register(Spec(client, {1}));
  TokenEvent event = Event(1, {}, FinishReason::kLength);
  event.prompt_logprobs = {SampleResult{3, true, -1, {}}};
  loop_->Post(event);
  client.WaitForDone();
  EXPECT_EQ(client.last[0].finish, FinishReason::kLength);
  EXPECT_EQ(client.done[0].usage.completion_tokens, 0);
}

TEST_F(OutputLoopTest, AnErrorOfOneChoiceEndsTheResponseAndCancelsTheOthers) {
  Client client;
  loop_->Register(Spec(client, {1, 2, 3}));
  PostText(1, "a", FinishReason::kLength);
  TokenEvent event = Event(2, {}, FinishReason::kError);
  event.error = Status(StatusCode::kInternal, "a row held NaN");
  loop_->Post(event);
  PostText(3, "dropped", FinishReason::kLength);
  client.WaitForDone();
  EXPECT_EQ(client.done[0].status.message(), "a row held NaN");
  EXPECT_EQ(cancelled(), std::vector<RequestId>{3});
  EXPECT_EQ(client.text[2], "");
}

TEST_F(OutputLoopTest, ACancelledChoiceEndsTheResponseAsCancelled) {
  Client client;
  loop_->Register(Spec(client, {1, 2}));
  PostText(1, "done", FinishReason::kLength);
  PostText(2, "half");
  loop_->Post(Event(2, {}, FinishReason::kCancelled));
  client.WaitForDone();
  EXPECT_EQ(client.text[1], "half");
  EXPECT_EQ(client.last[1].finish, FinishReason::kCancelled);
  EXPECT_EQ(client.done[0].status.code(), StatusCode::kCancelled);
}

TEST_F(OutputLoopTest, AbortEndsTheWholeResponse) {
  Client client;
  loop_->Register(Spec(client, {1, 2}));
  loop_->Abort(2, Status(StatusCode::kResourceExhausted, "full"));
  loop_->Abort(1, Status(StatusCode::kInternal, "ignored: it has ended"));
  loop_->Abort(99, Status(StatusCode::kInternal, "unknown"));
  client.WaitForDone();
  EXPECT_EQ(client.done[0].status.message(), "full");
  EXPECT_EQ(cancelled(), (std::vector<RequestId>{1, 2}));
}

TEST_F(OutputLoopTest, AbortByAChoiceThatHasEndedEndsTheOthers) {
  Client client;
  loop_->Register(Spec(client, {1, 2}));
  PostText(1, "done", FinishReason::kLength);
  loop_->Abort(1, Status(StatusCode::kDeadlineExceeded, "late"));
  client.WaitForDone();
  EXPECT_EQ(client.done[0].status.message(), "late");
  EXPECT_EQ(cancelled(), std::vector<RequestId>{2});
}

TEST_F(OutputLoopTest, AReaderThatIsTooSlowIsCancelled) {
  Client client(4096);
  loop_->Register(Spec(client, {1, 2}));
  for (int i = 0; i < 200; ++i) loop_->Post(Event(1, Encode("dog")));
  loop_.reset();
  EXPECT_EQ(cancelled(), (std::vector<RequestId>{1, 2}));
  client.WaitForDone();
  EXPECT_EQ(client.done[0].status.code(), StatusCode::kResourceExhausted);
}

TEST_F(OutputLoopTest, AClosedStreamIsCancelledAtItsNextToken) {
  Client client;
  loop_->Register(Spec(client, {1}));
  client.stream()->Close();
  PostText(1, "dog");
  loop_.reset();
  EXPECT_EQ(cancelled(), std::vector<RequestId>{1});
}

TEST_F(OutputLoopTest, WhatStillRunsAtTheEndIsToldAndNotCancelled) {
  Client client;
  loop_->Register(Spec(client, {1, 2}));
  PostText(1, "dog");
  loop_.reset();
  client.WaitForDone();
  EXPECT_EQ(client.text[0], "dog");
  EXPECT_EQ(client.done[0].status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(cancelled().empty()) << "the engine may be gone";
}

TEST_F(OutputLoopTest, AFullOutboxHoldsTheEngineBackAndIsCounted) {
  std::mutex gate;
  gate.lock();
  auto stream = std::make_shared<ResponseStream>(1 << 20, [&] { std::lock_guard wait(gate); });
  Start(2);
  ResponseSpec spec;
  spec.stream = stream;
  spec.requests = {1};
  loop_->Register(spec);
  std::thread engine([&] {
    for (int i = 0; i < 10; ++i) loop_->Post(Event(1, Encode("dog")));
    loop_->Post(Event(1, {}, FinishReason::kLength));
  });
  while (loop_->num_waits() == 0) std::this_thread::yield();
  gate.unlock();
  engine.join();
  loop_.reset();
  size_t events = 0;
  while (stream->TryPop()) ++events;
  EXPECT_EQ(events, 12u);
}

// The engine, clients that go away, and aborts at once: each response ends exactly once, and no
// continuation is left running.
TEST_F(OutputLoopTest, ResponsesOfManyThreadsEndOnceEach) {
  Start(8);
  const std::string stopped = "The quick brown fox jumps over the ";
  const std::string text = stopped + "lazy dog. 日本語 😀";
  const std::vector<int32_t> ids = Encode(text);
  std::atomic<RequestId> next_id = 1;
  std::atomic<int> ended_ok = 0;
  const auto serve = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int round = 0; round < 60; ++round) {
      Client client;
      const RequestId first = next_id.fetch_add(3);
      ResponseSpec spec = Spec(client, {first, first + 1, first + 2});
      if (random() % 3 == 0) spec.stop = {"lazy"};
      loop_->Register(spec);
      const uint32_t fate = random() % 4;
      for (size_t i = 0; i < ids.size(); ++i) {
        const FinishReason finish = i + 1 == ids.size() ? FinishReason::kLength
                                                        : FinishReason::kNone;
        for (const RequestId id : spec.requests) loop_->Post(Event(id, {ids[i]}, finish));
        if (i == 5 && fate == 0) client.stream()->Close();
        if (i == 5 && fate == 1)
          loop_->Abort(first + 1, Status(StatusCode::kDeadlineExceeded, "late"));
      }
      if (fate == 0) continue;
      client.WaitForDone();
      EXPECT_EQ(client.done.size(), 1u);
      EXPECT_EQ(client.done[0].status.code(),
                fate == 1 ? StatusCode::kDeadlineExceeded : StatusCode::kOk);
      if (fate == 1) continue;
      ++ended_ok;
      for (int c = 0; c < 3; ++c) EXPECT_EQ(client.text[c], spec.stop.empty() ? text : stopped);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) threads.emplace_back(serve, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(ended_ok, 20);
}

}  // namespace
}  // namespace diffserve
