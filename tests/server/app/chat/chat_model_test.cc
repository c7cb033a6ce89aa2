// SPDX-License-Identifier: Apache-2.0
// The two models of a chat: a server over its sockets, with held steps where work must overlap, and
// the bundled model in this process.
#include "server/app/chat/chat_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "server/app/chat/chat_history.h"
#include "tests/testing/kernels/source_directory.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using testing::ServingFixture;
using testing::ServingOptions;

const std::string kMessages = R"([{"role":"user","content":"hello"}])";
const Conversation kHello = ChatHistory("").With("hello");

ChatOptions At(int port) {
  ChatOptions chat;
  chat.url = "http://127.0.0.1:" + std::to_string(port);
  chat.max_tokens = 40;
  return chat;
}

std::unique_ptr<ChatModel> Connected(const ChatOptions& chat,
                                     const GenerateOptions& generate = {}) {
  Result<std::unique_ptr<ChatModel>> model = ConnectChatModel({}, generate, chat);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::move(model).value() : nullptr;
}

TEST(RemoteChatTest, RemoteAnswersEqualTheServers) {
  ServingFixture server;
  GenerateOptions generate;
  generate.sampling.temperature = 0.7f;
  generate.sampling.top_p = 0.9f;
  generate.sampling.repetition_penalty = 1.1f;
  const auto model = Connected(At(server.port()), generate);
  EXPECT_THAT(model->name(), HasSubstr("tiny at http://127.0.0.1:"));
  std::string streamed;
  const Result<ChatAnswer> answer = model->Answer(
      kHello, [&](std::string_view piece) { streamed += piece; }, {});
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  testing::HttpClient client(server.port());
  const auto reply = client
                         .Post("/v1/chat/completions",
                               R"({"max_tokens": 40, "temperature": 0.7, "top_p": 0.9, "seed": 0,
          "repetition_penalty": 1.1, "messages": )" +
                                   kMessages + "}")
                         .json();
  const auto& choice = reply["choices"][0];
  EXPECT_EQ(choice["message"]["content"], answer->text);
  EXPECT_EQ(choice["finish_reason"], answer->finish_reason);
  EXPECT_EQ(streamed, answer->text);
}

TEST(RemoteChatTest, StopEndsAnAnswerOfAnyServer) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(std::move(options));
  const auto model = Connected(At(server.port()));
  std::stop_source source;
  std::jthread stopper([&] {
    server.steps.WaitForArrival();
    source.request_stop();
  });
  const Result<ChatAnswer> answer = model->Answer(
      kHello, [](std::string_view) {}, source.get_token());
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->finish_reason, "");
  EXPECT_EQ(answer->text, "");
  EXPECT_TRUE(server.BecomesIdle()) << "the server has seen that its client is gone";
}

TEST(RemoteChatTest, EarlierStopIsNotForgotten) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(std::move(options));
  const auto model = Connected(At(server.port()));
  std::stop_source source;
  source.request_stop();
  const Result<ChatAnswer> answer = model->Answer(
      kHello, [](std::string_view) {}, source.get_token());
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->finish_reason, "");
}

TEST(RemoteChatTest, RefusalShowsTheServersMessage) {
  ServingFixture server;
  ChatOptions chat = At(server.port());
  chat.max_tokens = 100'000;
  const Result<ChatAnswer> answer = Connected(chat)->Answer(kHello, [](std::string_view) {}, {});
  ASSERT_FALSE(answer.ok());
  EXPECT_THAT(answer.status().message(), HasSubstr(chat.url + ": status 400: "));
  EXPECT_THAT(answer.status().message(),
              HasSubstr("`max_tokens` exceed context limit: 5 + 100000 > 512"));
}

TEST(RemoteChatTest, FirstKeyOfTheFileIsSent) {
  ServingOptions options;
  options.keys = "good";
  ServingFixture server(std::move(options));
  ChatOptions chat = At(server.port());
  const auto refused = ConnectChatModel({}, {}, chat);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr(": status 401 (--api-key-file): "));
  TemporaryDirectory directory;
  directory.Write("keys", "# ours\n\ngood\nother\n");
  chat.api_key_file = directory.path() / "keys";
  EXPECT_TRUE(Connected(chat)->Answer(kHello, [](std::string_view) {}, {}).ok());
  directory.Write("keys", "# none\n");
  const auto empty = ConnectChatModel({}, {}, chat);
  ASSERT_FALSE(empty.ok());
  EXPECT_THAT(empty.status().message(), HasSubstr(chat.api_key_file + ": holds no key"));
}

TEST(RemoteChatTest, UnreachableServerIsNamed) {
  int port = 0;
  {
    ServingFixture server;
    port = server.port();
  }
  const auto model = ConnectChatModel({}, {}, At(port));
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(model.status().message(), At(port).url + ": Connection refused");
}

// ---- The bundled model.

class LocalChatTest : public ::testing::Test {
 protected:
  static Result<std::unique_ptr<ChatModel>> Load(const std::string& dir,
                                                 const ExecutorWrapper& wrap = {}) {
    SessionOptions options;
    options.model_dir = dir;
    options.threads = 2;
    return LoadChatModel(options, {}, {}, wrap);
  }
  const std::string demo_ = SourceDirectory() + "/models/demo/diff";
};

TEST_F(LocalChatTest, ConversationIsRemembered) {
  const Result<std::unique_ptr<ChatModel>> model = Load(demo_);
  ASSERT_TRUE(model.ok()) << model.status().message();
  ChatHistory history("");
  const auto answer = [&](const std::string& question) {
    std::string streamed;
    const Result<ChatAnswer> found = (*model)->Answer(
        history.With(question), [&](std::string_view piece) { streamed += piece; }, {});
    EXPECT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(streamed, found->text);
    EXPECT_EQ(found->finish_reason, "stop");
    history.Add(question, found->text);
    return found->text;
  };
  EXPECT_EQ(answer("The magic number of Lisbon is 48213. The magic number of Oslo is 90417. What "
                   "is the magic number of Lisbon?"),
            "The magic number of Lisbon is 48213.");
  EXPECT_EQ(answer("What is the magic number of Oslo?"), "The magic number of Oslo is 90417.");
}

// Lets steps pass by a gate.
class GatedExecutor : public Executor {
 public:
  GatedExecutor(std::unique_ptr<Executor> inner, testing::StepGate& gate)
      : inner_(std::move(inner)), gate_(gate) {}
  int depth() const override { return inner_->depth(); }
  void Launch(const StepPlan& plan) override {
    gate_.Pass();
    inner_->Launch(plan);
  }
  StepResult Collect() override { return inner_->Collect(); }

 private:
  const std::unique_ptr<Executor> inner_;
  testing::StepGate& gate_;
};

TEST_F(LocalChatTest, StopDuringAStepEndsTheAnswerAndTheNextIsComplete) {
  testing::StepGate gate(testing::StepGate::State::kClosed);
  const Result<std::unique_ptr<ChatModel>> model = Load(
      demo_, [&](std::unique_ptr<Executor> inner) {
        return std::make_unique<GatedExecutor>(std::move(inner), gate);
      });
  ASSERT_TRUE(model.ok()) << model.status().message();
  std::stop_source source;
  {
    std::jthread stopper([&] {
      gate.WaitForArrival();
      source.request_stop();
    });
    const Result<ChatAnswer> answer = (*model)->Answer(
        kHello, [](std::string_view) {}, source.get_token());
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->finish_reason, "");
  }
  gate.Open();
  const Result<ChatAnswer> answer = (*model)->Answer(kHello, [](std::string_view) {}, {});
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_NE(answer->finish_reason, "");
  EXPECT_FALSE(answer->text.empty());
}

TEST_F(LocalChatTest, ModelWithoutTemplateIsRefused) {
  TemporaryDirectory directory;
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"})
    directory.Write(file, FileBytes(demo_ + "/" + file));
  const auto model = Load(directory.path());
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.status().message(), HasSubstr("the model has no chat template"));
}

}  // namespace
}  // namespace diffserve
