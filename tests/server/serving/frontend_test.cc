// SPDX-License-Identifier: Apache-2.0
// The frontend without a transport: admission, cancellation at every stage, deadlines, and its
// bounded queue.
#include "server/serving/frontend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/serving/text_pool.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::Eventually;
using testing::ServingFixture;
using testing::ServingOptions;

// A transport that collects all events.
class Collector {
 public:
  explicit Collector(size_t max_bytes = 1 << 20)
      : stream(std::make_shared<ResponseStream>(max_bytes, [this] {
          std::lock_guard lock(mutex_);
          notified_ = true;
          changed_.notify_all();
        })) {}
  ~Collector() { stream->Close(); }

  // Collects events to the end; returns the end's status.
  Status WaitForEnd() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (std::chrono::steady_clock::now() < limit) {
      while (auto event = stream->TryPop()) {
        if (auto* done = std::get_if<ResponseDone>(&*event)) {
          usage = done->usage;
          return done->status;
        }
        if (std::holds_alternative<ResponseStarted>(*event)) started = true;
        if (auto* delta = std::get_if<ResponseDelta>(&*event))
          tokens += static_cast<int>(delta->tokens.size());
      }
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, limit, [&] { return notified_; });
      notified_ = false;
    }
    return Status(StatusCode::kInternal, "no end came");
  }

  std::shared_ptr<ResponseStream> stream;
  bool started = false;
  int tokens = 0;
  Usage usage;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
};

GenerateRequest Ask(Frontend& frontend, const std::string& id, int max_tokens) {
  GenerateRequest request;
  request.request_id = id;
  request.prompts = {std::string("hello")};
  request.max_tokens = max_tokens;
  request.sampling = frontend.DefaultSampling();
  request.sampling.ignore_eos = true;
  return request;
}

// Holds the only text thread until it is released.
class HeldTextThread {
 public:
  explicit HeldTextThread(Frontend& frontend) {
    EXPECT_TRUE(frontend
                    .Tokenize("", std::string("x"), {},
                              [this](Result<std::vector<int32_t>>) {
                                std::unique_lock lock(mutex_);
                                held_ = true;
                                changed_.notify_all();
                                changed_.wait(lock, [&] { return released_; });
                              })
                    .ok());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_; });
  }
  void Release() {
    std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, released_ = false;
};

TEST(FrontendTest, RequestStartsGivesItsTokensAndEnds) {
  ServingFixture server;
  Collector client;
  GenerateRequest request = Ask(*server.frontend, "a", 7);
  request.n = 3;
  ASSERT_TRUE(server.frontend->Generate(std::move(request), client.stream).ok());
  EXPECT_TRUE(client.WaitForEnd().ok());
  EXPECT_TRUE(client.started);
  EXPECT_EQ(client.tokens, 21);
  EXPECT_EQ(client.usage.completion_tokens, 21);
}

TEST(FrontendTest, DefaultsComeFromTheModel) {
  EXPECT_EQ(ServingFixture().frontend->DefaultSampling().temperature, 1.0f);
  ServingOptions options;
  options.config.default_temperature = 0.25f;
  options.config.default_top_k = 11;
  options.config.default_top_p = 0.5f;
  options.config.default_min_p = 0.125f;
  options.config.default_repetition_penalty = 1.25f;
  ServingFixture server(options);
  const SamplingParams sampling = server.frontend->DefaultSampling();
  EXPECT_EQ(sampling.temperature, 0.25f);
  EXPECT_EQ(sampling.top_k, 11);
  EXPECT_EQ(sampling.top_p, 0.5f);
  EXPECT_EQ(sampling.min_p, 0.125f);
  EXPECT_EQ(sampling.repetition_penalty, 1.25f);
  EXPECT_NE(sampling.seed, server.frontend->DefaultSampling().seed);
}

TEST(FrontendTest, DefaultRequestGetsTheModelsLength) {
  ServingOptions options;
  options.config.default_max_tokens = 9;
  ServingFixture server(options);
  const auto length_of = [&](std::optional<int> max_tokens, int max_tokens_default) {
    Collector client;
    GenerateRequest request = Ask(*server.frontend, "a", 1);
    request.max_tokens = max_tokens;
    request.max_tokens_default = max_tokens_default;
    EXPECT_TRUE(server.frontend->Generate(std::move(request), client.stream).ok());
    EXPECT_TRUE(client.WaitForEnd().ok());
    return client.tokens;
  };
  EXPECT_EQ(length_of(std::nullopt, 0), 9);
  EXPECT_EQ(length_of(20, 0), 20);
  EXPECT_EQ(length_of(std::nullopt, 16), 16);  // the API's own default
}

TEST(FrontendTest, ModelsEndTokensEndASequence) {
  ServingOptions options;
  for (int id = 0; id < 256; ++id) options.config.eos_token_ids.push_back(id);
  ServingFixture server(options);
  Collector client;
  GenerateRequest request = Ask(*server.frontend, "a", 50);
  request.sampling.ignore_eos = false;
  ASSERT_TRUE(server.frontend->Generate(std::move(request), client.stream).ok());
  EXPECT_TRUE(client.WaitForEnd().ok());
  EXPECT_EQ(client.tokens, 1);
}

TEST(FrontendTest, DeadlineEndsARunningRequest) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  Collector client;
  GenerateRequest request = Ask(*server.frontend, "a", 500);
  StatusCode accepted = StatusCode::kOk;
  do {  // again if the deadline passed on the way to the frontend
    request.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    accepted = server.frontend->Generate(request, client.stream).status().code();
  } while (accepted == StatusCode::kDeadlineExceeded);
  ASSERT_EQ(accepted, StatusCode::kOk);
  EXPECT_EQ(client.WaitForEnd().code(), StatusCode::kDeadlineExceeded);
  server.steps.Open();
  EXPECT_TRUE(server.EngineIsEmpty());
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kLength), 0u);
}

TEST(FrontendTest, DeadlineThatHasPassedIsRefusedAtOnce) {
  ServingFixture server;
  Collector client;
  GenerateRequest request = Ask(*server.frontend, "a", 5);
  request.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  EXPECT_EQ(server.frontend->Generate(std::move(request), client.stream).status().code(),
            StatusCode::kDeadlineExceeded);
}

TEST(FrontendTest, CancelBeforeTheTextWorkNeverReachesTheEngine) {
  ServingFixture server;
  HeldTextThread held(*server.frontend);
  Collector by_id, by_stream;
  ASSERT_TRUE(server.frontend->Generate(Ask(*server.frontend, "a", 50), by_id.stream).ok());
  const Result<ResponseId> gone = server.frontend->Generate(Ask(*server.frontend, "b", 50),
                                                            by_stream.stream);
  ASSERT_TRUE(gone.ok());
  EXPECT_TRUE(server.frontend->Cancel({}, "a"));
  server.frontend->Abandon(*gone);
  EXPECT_EQ(by_id.WaitForEnd().code(), StatusCode::kCancelled);
  EXPECT_EQ(by_stream.WaitForEnd().code(), StatusCode::kCancelled);
  EXPECT_FALSE(server.frontend->Cancel({}, "b")) << "no request of that name runs";
  held.Release();
  Collector last;
  ASSERT_TRUE(server.frontend->Generate(Ask(*server.frontend, "c", 1), last.stream).ok());
  EXPECT_TRUE(last.WaitForEnd().ok());
  EXPECT_EQ(server.Stats().generation_tokens, 1u);
}

TEST(FrontendTest, CancelByIdEndsEveryRequestWithThatId) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  Collector first, second, other;
  for (Collector* client : {&first, &second}) {
    ASSERT_TRUE(server.frontend->Generate(Ask(*server.frontend, "same", 400), client->stream).ok());
  }
  ASSERT_TRUE(server.frontend->Generate(Ask(*server.frontend, "other", 20), other.stream).ok());
  ASSERT_TRUE(Eventually([&] { return server.Stats().waiting == 3; }));
  server.steps.Allow(2);  // the first may run in a step of its own
  ASSERT_TRUE(Eventually([&] { return server.Stats().running == 3; }));
  EXPECT_TRUE(server.frontend->Cancel({}, "same"));
  EXPECT_EQ(first.WaitForEnd().code(), StatusCode::kCancelled);
  EXPECT_EQ(second.WaitForEnd().code(), StatusCode::kCancelled);
  server.steps.Open();
  EXPECT_TRUE(other.WaitForEnd().ok());
}

TEST(FrontendTest, AbandonedResponseLeavesOthersWithTheSameIdRunning) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  Collector gone, stays;
  const Result<ResponseId> id = server.frontend->Generate(Ask(*server.frontend, "same", 400),
                                                          gone.stream);
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(server.frontend->Generate(Ask(*server.frontend, "same", 30), stays.stream).ok());
  ASSERT_TRUE(Eventually([&] { return server.Stats().waiting == 2; }));
  server.frontend->Abandon(*id);
  EXPECT_FALSE(gone.WaitForEnd().ok());  // by then the cancel has reached the engine
  server.steps.Open();
  EXPECT_TRUE(stays.WaitForEnd().ok());
  EXPECT_EQ(stays.tokens, 30);
  EXPECT_TRUE(server.EngineIsEmpty());
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kCancelled), 1u);
}

TEST(FrontendTest, FullTextQueueRefuses) {
  ServingOptions options;
  options.frontend.max_text_queue = 2;
  ServingFixture server(options);
  HeldTextThread held(*server.frontend);
  Collector clients[3];
  EXPECT_TRUE(server.frontend->Generate(Ask(*server.frontend, "a", 1), clients[0].stream).ok());
  EXPECT_TRUE(server.frontend->Generate(Ask(*server.frontend, "b", 1), clients[1].stream).ok());
  EXPECT_TRUE(server.frontend->Generate(Ask(*server.frontend, "c", 1), clients[2].stream).ok());
  EXPECT_EQ(clients[2].WaitForEnd().code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(clients[2].started);
  const Status refused = server.frontend->Tokenize("", std::string("x"), {},
                                                   [](Result<std::vector<int32_t>>) {});
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  held.Release();
  EXPECT_TRUE(clients[0].WaitForEnd().ok());
  EXPECT_TRUE(clients[1].WaitForEnd().ok());
}

// The two that wait for a text thread take the whole queue; one of them never reaches it.
TEST(FrontendTest, RequestsInTheTextQueueHoldPlacesInTheEnginesQueue) {
  ServingOptions options;
  options.engine.max_waiting_requests = 2;
  ServingFixture server(options);
  HeldTextThread held(*server.frontend);
  Collector served, cancelled, last;
  ASSERT_TRUE(server.frontend->Generate(Ask(*server.frontend, "a", 1), served.stream).ok());
  ASSERT_TRUE(server.frontend->Generate(Ask(*server.frontend, "b", 1), cancelled.stream).ok());
  const auto refused = server.frontend->Generate(Ask(*server.frontend, "c", 1), last.stream);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(server.Refused(RefusalReason::kQueueFull), 1u);
  EXPECT_EQ(server.Stats().waiting, 0);
  server.frontend->Cancel({}, "b");
  held.Release();
  EXPECT_TRUE(served.WaitForEnd().ok());
  EXPECT_EQ(cancelled.WaitForEnd().code(), StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] {
    return server.frontend->Generate(Ask(*server.frontend, "d", 1), last.stream).ok();
  })) << "both places are free again";
  EXPECT_TRUE(last.WaitForEnd().ok());
}

TEST(FrontendTest, TextQueueIsBoundedInBytes) {
  ServingOptions options;
  options.frontend.max_text_queue_bytes = 1000;
  ServingFixture server(options);
  HeldTextThread held(*server.frontend);
  Collector first, second;
  GenerateRequest big = Ask(*server.frontend, "a", 1);
  big.prompts = {std::string(400, 'x')};
  GenerateRequest bigger = big;
  bigger.prompts = {std::string(700, 'x')};
  EXPECT_TRUE(server.frontend->Generate(big, first.stream).ok());
  EXPECT_TRUE(server.frontend->Generate(bigger, second.stream).ok());
  EXPECT_EQ(second.WaitForEnd().code(), StatusCode::kResourceExhausted);
  held.Release();
  EXPECT_TRUE(first.WaitForEnd().ok());
}

TEST(FrontendTest, TextThatCannotFitIsRefusedBeforeTextWork) {
  ServingFixture server;
  HeldTextThread held(*server.frontend);
  const size_t bound = server.tokenizer->max_token_bytes();
  ASSERT_GT(bound, 0u);
  Collector client;
  GenerateRequest request = Ask(*server.frontend, "a", 1);
  request.prompts = {std::string("short"), std::string(512 * bound + 1, 'x')};
  const Result<ResponseId> refused = server.frontend->Generate(request, client.stream);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().param(), "prompt");
  EXPECT_EQ(refused.status().message(),
            "prompt is too long: 513 tokens > 512 maximum (" + std::to_string(512 * bound + 1) +
                " bytes have at least that many); that exceeds the context window; this model's "
                "maximum context length is 512 tokens (context_length_exceeded)");
  EXPECT_EQ(server.Refused(RefusalReason::kTooLong), 1u);
  held.Release();
  request.prompts = {std::string(512 * bound, 'x')};
  ASSERT_TRUE(server.frontend->Generate(request, client.stream).ok());
  EXPECT_EQ(client.WaitForEnd().code(), StatusCode::kContextExceeded);
}

TEST(FrontendTest, LongTextIsTokenizedOnlyUntilItExceedsTheContext) {
  ServingOptions options;
  options.engine.max_model_len = 8000;
  ServingFixture server(options);
  Collector client;
  GenerateRequest request = Ask(*server.frontend, "a", 1);
  std::string text;
  while (text.size() <= kShortTextBytes) text += "a b ";
  ASSERT_LE(text.size(), 8000 * server.tokenizer->max_token_bytes());
  request.prompts = {text};
  ASSERT_TRUE(server.frontend->Generate(request, client.stream).ok());
  const Status status = client.WaitForEnd();
  EXPECT_EQ(status.message(),
            "prompt is too long: 8001 tokens > 8000 maximum (counting stopped there); that "
            "exceeds the context window; this model's maximum context length is 8000 tokens "
            "(context_length_exceeded)");
  EXPECT_EQ(status.param(), "prompt");
  EXPECT_EQ(server.Refused(RefusalReason::kTooLong), 1u);
}

TEST(FrontendTest, BudgetErrorNamesTheFieldThatTheClientSent) {
  ServingFixture server;
  Collector client;
  GenerateRequest request = Ask(*server.frontend, "a", 512);
  request.names.max_tokens = "max_completion_tokens";
  ASSERT_TRUE(server.frontend->Generate(request, client.stream).ok());
  const Status status = client.WaitForEnd();
  EXPECT_EQ(status.param(), "max_completion_tokens");
  EXPECT_EQ(status.code(), StatusCode::kContextExceeded);
  EXPECT_TRUE(status.message().starts_with(
      "input length and `max_completion_tokens` exceed context limit: "))
      << status.message();
}

TEST(FrontendTest, SpecialTokensInMessagesAreText) {
  ServingFixture server;
  Conversation chat;
  chat.messages = {{.role = "user", .content = "<|end|>x"}};
  std::promise<Result<std::vector<int32_t>>> promise;
  ASSERT_TRUE(server.frontend
                  ->Tokenize("", chat, {.add_special_tokens = false},
                             [&](Result<std::vector<int32_t>> ids) { promise.set_value(ids); })
                  .ok());
  const std::vector<int32_t> ids = promise.get_future().get().value();
  const auto specials = std::count_if(ids.begin(), ids.end(),
                                      [&](int32_t id) { return server.tokenizer->IsSpecial(id); });
  EXPECT_EQ(specials, 2);  // the template has <|user|> and <|assistant|>
  EXPECT_EQ(server.tokenizer->Decode(ids, false).value(), "<|user|><|end|>x<|assistant|>");
}

TEST(FrontendTest, StalledReaderIsCancelled) {
  ServingOptions options;
  options.engine.max_model_len = 8192;
  ServingFixture server(options);
  Collector client(2000);
  // The 2000 bytes and the output loop's queue hold a small part of the tokens.
  ASSERT_TRUE(server.frontend->Generate(Ask(*server.frontend, "a", 8000), client.stream).ok());
  EXPECT_TRUE(
      Eventually([&] { return server.Stats().num_finished(FinishReason::kCancelled) == 1; }));
  EXPECT_EQ(client.WaitForEnd().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(server.EngineIsEmpty());
}

TEST(FrontendTest, QueuedTextWorkGetsAnErrorAtShutdown) {
  ServingOptions options;
  options.frontend.max_text_queue = 1 << 30;  // so that text work is refused only at the frontend's
                                              // end
  ServingFixture server(options);
  // Holds the only text thread until then.
  const auto stay = [&frontend = *server.frontend](bool) {
    while (frontend.RunOnTextThread("", 0, [](bool) {}).ok())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  ASSERT_TRUE(server.frontend->RunOnTextThread("", 0, stay).ok());
  Collector client;
  ASSERT_TRUE(server.frontend->Generate(Ask(*server.frontend, "a", 5), client.stream).ok());
  server.StopAll();
  EXPECT_EQ(client.WaitForEnd().code(), StatusCode::kUnavailable);
}

TEST(FrontendTest, RandomCancelsLeakNothing) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  std::vector<std::unique_ptr<Collector>> clients;
  std::vector<ResponseId> responses;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<Collector>());
    const std::string id = std::to_string(i);
    const Result<ResponseId> response = server.frontend->Generate(
        Ask(*server.frontend, id, 1 + i % 50), clients.back()->stream);
    ASSERT_TRUE(response.ok());
    responses.push_back(*response);
    if (i % 3 == 0) server.frontend->Cancel({}, std::to_string(i - i % 7));
    if (i % 5 == 0) server.frontend->Abandon(responses[static_cast<size_t>(i - i % 4)]);
    server.steps.Allow(1);
  }
  server.steps.Open();
  std::map<StatusCode, int> ends;
  for (const auto& client : clients) ++ends[client->WaitForEnd().code()];
  EXPECT_GT(ends[StatusCode::kOk], 50);
  EXPECT_GT(ends[StatusCode::kCancelled], 50);
  EXPECT_EQ(ends[StatusCode::kOk] + ends[StatusCode::kCancelled], 200);
  EXPECT_TRUE(server.EngineIsEmpty());
}

}  // namespace
}  // namespace diffserve
