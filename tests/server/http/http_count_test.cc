// SPDX-License-Identifier: Apache-2.0
// Every request over HTTP is counted once, by route and status, whatever way its answer took.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::Eventually;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;

using Counts = std::map<std::pair<std::string, int>, int>;

class HttpCountTest : public ::testing::Test {
 protected:
  ServingFixture& Start(ServingOptions options = {}) {
    options.routes.on_reply = [this](std::string_view route, int status) {
      std::lock_guard lock(mutex_);
      ++counts_[{std::string(route), status}];
    };
    server_ = std::make_unique<ServingFixture>(options);
    return *server_;
  }
  // The counts include all that a client has read, because replies are counted before they are
  // sent.
  Counts Seen() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }
  int Total() const {
    int total = 0;
    for (const auto& [key, count] : Seen()) total += count;
    return total;
  }

 private:
  mutable std::mutex mutex_;
  Counts counts_;
  std::unique_ptr<ServingFixture> server_;
};

TEST_F(HttpCountTest, ImmediateRepliesAreCountedByRouteAndStatus) {
  ServingFixture& server = Start();
  HttpClient client(server.port());
  client.Get("/livez");
  client.Get("/livez");
  client.Get("/v1/models");
  client.Get("/v1/models/tiny");
  client.Get("/v1/models/another");
  client.Get("/v1/completions");
  client.Post("/v1/completions", "{}", "Content-Type: text/plain\r\n");  // its second Content-Type
  HttpClient second(server.port());
  second.Send(
      "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: "
      "2\r\n\r\n{}");
  EXPECT_EQ(second.ReadReply().status, 415);
  second.Post("/v1/completions", "no JSON");
  EXPECT_EQ(Seen(), (Counts{{{"/livez", 200}, 2},
                            {{"/v1/models", 200}, 1},
                            {{"/v1/models/", 200}, 1},
                            {{"/v1/models/", 404}, 1},
                            {{"/v1/completions", 405}, 1},
                            {{"other", 400}, 1},
                            {{"/tokenize", 415}, 1},
                            {{"/v1/completions", 400}, 1}}));
}

TEST_F(HttpCountTest, GeneratedAnswersAreCountedOnceWholeAndStreamed) {
  ServingFixture& server = Start();
  HttpClient client(server.port());
  const std::string large(200 << 10, ' ');  // parsed on a text thread
  for (const std::string& padding : {std::string(), large}) {
    for (const char* stream : {"", R"(,"stream":true)"}) {
      const std::string members = R"("prompt":"hello","max_tokens":5,"ignore_eos":true)";
      EXPECT_EQ(client.Post("/v1/completions", "{" + members + stream + padding + "}").status, 200);
    }
    EXPECT_EQ(client.Post("/tokenize", R"({"prompt":"hello")" + padding + "}").status, 200);
    EXPECT_EQ(client.Post("/v1/completions", R"({"prompt":5.5)" + padding + "}").status, 400);
  }
  EXPECT_EQ(client.Post("/detokenize", R"({"tokens":[1,2]})").status, 200);
  EXPECT_EQ(Seen(), (Counts{{{"/v1/completions", 200}, 4},
                            {{"/tokenize", 200}, 2},
                            {{"/v1/completions", 400}, 2},
                            {{"/detokenize", 200}, 1}}));
}

TEST_F(HttpCountTest, UnknownPathsAreCountedAsOneRoute) {
  ServingFixture& server = Start();
  HttpClient client(server.port());
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.Get("/made/up/" + std::to_string(i)).status, 404);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.Get("/v1/models/" + std::to_string(i)).status, 404);
  EXPECT_EQ(Seen(), (Counts{{{"other", 404}, 50}, {{"/v1/models/", 404}, 50}}));
}

TEST_F(HttpCountTest, GateRefusalsAreCounted) {
  ServingOptions options;
  options.http.limits.max_body_bytes = 1000;
  options.http.head_timeout = std::chrono::milliseconds(100);
  ServingFixture& server = Start(options);
  const auto refused = [&](const std::string& bytes) {
    HttpClient client(server.port());
    client.Send(bytes);
    return client.ReadReply().status;
  };
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(refused("POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n"), 413);
  EXPECT_EQ(refused("GET /livez HT"), 408);
  EXPECT_EQ(Seen(), (Counts{{{"other", 400}, 1}, {{"other", 413}, 1}, {{"other", 408}, 1}}));
}

TEST_F(HttpCountTest, MissingKeyIsCountedOnItsRoute) {
  ServingOptions options;
  options.keys = "a-key-of-the-test\n";
  ServingFixture& server = Start(options);
  HttpClient client(server.port());
  EXPECT_EQ(client.Get("/metrics").status, 401);
  EXPECT_EQ(client.Get("/made/up").status, 401);
  EXPECT_EQ(client.Get("/livez").status, 200);
  EXPECT_EQ(Seen(), (Counts{{{"/metrics", 401}, 1}, {{"other", 401}, 1}, {{"/livez", 200}, 1}}));
}

TEST_F(HttpCountTest, OverloadAndFailuresKeepTheirStatus) {
  ServingOptions options;
  options.engine.max_num_seqs = 1;
  options.engine.max_waiting_requests = 1;
  options.hold_steps = true;
  options.executor.is_corrupt = [](RequestId, int position) { return position == 200; };
  ServingFixture& server = Start(options);
  std::map<int, int> statuses;
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    clients.back()->SendPost("/v1/completions",
                             R"({"prompt":"a","max_tokens":100,"ignore_eos":true})");
  }
  EXPECT_TRUE(Eventually([&] { return server.Refused(RefusalReason::kQueueFull) == 7; }));
  server.steps.Open();
  for (const auto& client : clients) ++statuses[client->ReadReply().status];
  EXPECT_EQ(statuses, (std::map<int, int>{{200, 1}, {429, 7}}));
  EXPECT_EQ(clients[0]
                ->Post("/v1/completions", R"({"prompt":"a","max_tokens":300,"ignore_eos":true})")
                .status,
            500);
  EXPECT_EQ(Seen(), (Counts{{{"/v1/completions", 200}, 1},
                            {{"/v1/completions", 429}, 7},
                            {{"/v1/completions", 500}, 1}}));
}

TEST_F(HttpCountTest, DisconnectedClientIsCountedOnceWithItsStatus) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture& server = Start(options);
  const auto has_left = [&] { return server.http->num_connections() == 0; };
  const std::string body = R"({"prompt":"hello","max_tokens":480,"ignore_eos":true,"stream":)";
  {
    HttpClient before_the_reply(server.port());
    before_the_reply.SendPost("/v1/completions", body + "false}");
    server.steps.Allow(1);
    ASSERT_TRUE(Eventually([&] { return server.Stats().running == 1; }));
  }
  EXPECT_TRUE(Eventually(has_left));
  EXPECT_EQ(Total(), 1);
  EXPECT_TRUE(server.BecomesIdle());
  {
    HttpClient within_the_stream(server.port());
    within_the_stream.SendPost("/v1/completions", body + "true}");
    server.steps.Allow(1);
    testing::ClientReply head;
    ASSERT_TRUE(within_the_stream.ReadHead(&head));
  }
  EXPECT_TRUE(Eventually(has_left));
  EXPECT_TRUE(server.BecomesIdle());
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kCancelled), 2u);
  EXPECT_EQ(Seen(), (Counts{{{"/v1/completions", 499}, 1}, {{"/v1/completions", 200}, 1}}));
}

TEST_F(HttpCountTest, ConcurrentCountsAreExact) {
  ServingOptions options;
  options.http.io_threads = 2;
  ServingFixture& server = Start(options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&server] {
      HttpClient client(server.port());
      for (int i = 0; i < 25; ++i) {
        client.Get("/version");
        client.Post("/v1/completions",
                    R"({"prompt":"a","max_tokens":2,"ignore_eos":true,"stream":true})");
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(Seen(), (Counts{{{"/version", 200}, 100}, {{"/v1/completions", 200}, 100}}));
}

}  // namespace
}  // namespace diffserve
