// SPDX-License-Identifier: Apache-2.0
// The HTTP server over real sockets, in front of the real engine with a fake executor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/http/server.h"
#include "tests/testing/server/http_cases.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::HttpCase;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;
using testing::SseData;

TEST(HttpServerTest, OddRequestsDoNotEndTheServer) {
  ServingFixture server;
  std::vector<HttpCase> cases = testing::HttpHeadCases();
  for (HttpCase& c : testing::HttpBodyCases()) cases.push_back(std::move(c));
  for (const HttpCase& c : cases) {
    HttpClient client(server.port());
    ASSERT_TRUE(client.connected());
    client.Send(c.bytes);
    const ClientReply reply = client.ReadReply();
    EXPECT_EQ(reply.status, c.status) << c.name;
    if (c.status == 200 || c.status == 405) continue;
    EXPECT_TRUE(client.AtEnd()) << c.name << ": the connection must be closed after a refusal";
    EXPECT_TRUE(reply.json().contains("error")) << c.name << ": " << reply.body;
  }
  HttpClient client(server.port());
  EXPECT_EQ(client.Get("/livez").status, 200);
}

TEST(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  ServingFixture server;
  HttpClient client(server.port());
  client.Send(
      "GET /version HTTP/1.1\r\nHost: a\r\n\r\nGET /load HTTP/1.1\r\nHost: a\r\n\r\nGET /livez "
      "HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(client.ReadReply().json().contains("version"));
  EXPECT_EQ(client.ReadReply().json()["server_load"], 0);
  EXPECT_EQ(client.ReadReply().json()["status"], "ok");
}

TEST(HttpServerTest, ConnectionServesItsLimitOfRequestsAndThenCloses) {
  ServingOptions options;
  options.http.max_requests_per_connection = 3;
  ServingFixture server(options);
  HttpClient client(server.port());
  EXPECT_EQ(client.Get("/livez").fields.count("connection"), 0u);
  EXPECT_EQ(client.Get("/livez").fields.count("connection"), 0u);
  EXPECT_EQ(client.Get("/livez").fields["connection"], "close");
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpServerTest, HttpOneZeroGetsItsReplyAndTheEnd) {
  ServingFixture server;
  HttpClient client(server.port());
  client.Send("GET /livez HTTP/1.0\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.ReadReply().fields["connection"], "close");
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpServerTest, StreamForHttpOneZeroHasNoChunksAndEndsWithTheConnection) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string body = R"({"prompt":"ab","max_tokens":3,"stream":true,"ignore_eos":true})";
  client.Send(
      "POST /v1/completions HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  ClientReply reply = client.ReadReply();
  EXPECT_EQ(reply.fields.count("transfer-encoding"), 0u);
  EXPECT_EQ(reply.fields["connection"], "close");
  EXPECT_EQ(SseData(reply.body).back(), "[DONE]");
}

TEST(HttpServerTest, HttpOneZeroKeepsItsConnectionIfItAsks) {
  ServingFixture server;
  HttpClient client(server.port());
  for (int i = 0; i < 2; ++i) {
    client.Send("GET /livez HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
    EXPECT_EQ(client.ReadReply().fields["connection"], "keep-alive");
  }
}

TEST(HttpServerTest, ContinueIsSentBeforeALargeBody) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string body = R"({"prompt":"ab","max_tokens":1})";
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  ASSERT_TRUE(client.ReadSome());
  EXPECT_EQ(client.buffered(), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(body);
  EXPECT_EQ(client.ReadReply().status, 200);
}

TEST(HttpServerTest, SlowHeadIsCutAtTheTimeout) {
  ServingOptions options;
  options.http.head_timeout = std::chrono::milliseconds(100);
  ServingFixture server(options);
  HttpClient half(server.port());
  half.Send("GET /livez HTTP/1.1\r\nHo");
  EXPECT_EQ(half.ReadReply().status, 408);
  EXPECT_TRUE(half.AtEnd());
}

TEST(HttpServerTest, SlowBodyIsCutAfterItsGrace) {
  ServingOptions options;
  options.http.body_grace = std::chrono::milliseconds(100);
  ServingFixture server(options);
  HttpClient client(server.port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(client.ReadReply().status, 408);
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpServerTest, IdleConnectionIsClosedWithoutAReply) {
  ServingOptions options;
  options.http.idle_timeout = std::chrono::milliseconds(100);
  ServingFixture server(options);
  HttpClient client(server.port());
  EXPECT_EQ(client.Get("/livez").status, 200);
  EXPECT_TRUE(client.AtEnd());
}

// What keeps the one I/O thread and the one connection of the port busy cannot reach the other.
TEST(HttpServerTest, HealthHasItsOwnPortAndThread) {
  std::promise<void> entered, leave;
  ServingOptions options;
  options.http.max_connections = 1;
  options.health_port = 0;
  options.routes.metrics_text = [&] {
    entered.set_value();
    leave.get_future().wait();
    return std::string();
  };
  ServingFixture server(options);
  HttpClient holds(server.port());
  holds.SendGet("/metrics");
  entered.get_future().wait();
  HttpClient probe(server.health_port());
  EXPECT_EQ(probe.Get("/livez").status, 200);
  EXPECT_EQ(probe.Get("/readyz").status, 200);
  server.health->BeginDrain();
  const ClientReply draining = probe.Get("/health");
  EXPECT_EQ(draining.status, 503);
  EXPECT_THAT(draining.body, HasSubstr("draining"));
  EXPECT_EQ(probe.Get("/livez").status, 200);
  leave.set_value();
  EXPECT_EQ(holds.ReadReply().status, 200);
}

TEST(HttpServerTest, HealthPortServesOnlyHealth) {
  ServingOptions options;
  options.health_port = 0;
  options.keys = "key-of-a-client";
  ServingFixture server(options);
  HttpClient client(server.health_port());
  const std::set<std::string_view> health = {"/livez", "/readyz", "/health"};
  for (const BoundRoute& route : server.Routes()) {
    if (route.method != "GET") continue;
    EXPECT_EQ(client.Get(testing::ExampleOf(route.path)).status,
              health.contains(route.path) ? 200 : 404)
        << route.path;
  }
  const ClientReply posted = client.Post("/livez", "{}");
  EXPECT_EQ(posted.status, 405);
  EXPECT_EQ(posted.fields.at("allow"), "GET, HEAD");
}

TEST(HttpServerTest, HealthPortAnswersTheChecksOfLoadBalancers) {
  ServingOptions options;
  options.health_port = 0;
  ServingFixture server(options);
  const auto status = [&](const std::string& request) {
    HttpClient client(server.health_port());
    client.Send(request);
    const int found = client.ReadReply(/*head_only=*/request.starts_with("HEAD")).status;
    EXPECT_TRUE(client.AtEnd()) << request;
    return found;
  };
  EXPECT_EQ(status("OPTIONS / HTTP/1.0\r\n\r\n"), 204);
  EXPECT_EQ(status("GET /readyz HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(status("HEAD /livez HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(status("GET /livez HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n"), 200);
  EXPECT_EQ(status("GET http://10.0.0.1/livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
            200);
  server.health->BeginDrain();
  EXPECT_EQ(status("OPTIONS / HTTP/1.0\r\n\r\n"), 503);
}

TEST(HttpServerTest, ServerRecoversFromDescriptorExhaustion) {
  ServingOptions options;
  options.http.max_connections = 100'000;
  ServingFixture server(options);
  ASSERT_EQ(HttpClient(server.port()).Get("/livez").status, 200);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next_file = dup(0);
  close(next_file);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next_file) + 40;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::vector<std::unique_ptr<HttpClient>> clients;
  int connected = 0;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    connected += clients.back()->connected() ? 1 : 0;
  }
  EXPECT_LT(connected, 100) << "the files were meant to run out";
  clients.clear();
  EXPECT_TRUE(Eventually([&] { return server.http->num_connections() == 0; }));
  HttpClient client(server.port());
  EXPECT_TRUE(client.connected());
  EXPECT_EQ(client.Get("/livez").status, 200);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(HttpServerTest, BodiesBeyondTheMemoryLimitAreRefused) {
  ServingOptions options;
  options.http.max_held_bytes = 1 << 20;
  ServingFixture server(options);
  HttpClient client(server.port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
  std::thread sender([&] { client.Send(std::string(3000000, 'x')); });
  EXPECT_EQ(client.ReadReply().status, 503);
  sender.join();
  HttpClient other(server.port());
  EXPECT_EQ(other.Get("/livez").status, 200);
}

TEST(HttpServerTest, ClientThatLeavesFreesItsPages) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  for (const bool stream : {true, false}) {
    for (const bool reset : {true, false}) {
      server.steps.Close();
      HttpClient client(server.port());
      client.SendPost(
          "/v1/completions",
          std::string(R"({"prompt":"hello","max_tokens":480,"ignore_eos":true,"stream":)") +
              (stream ? "true}" : "false}"));
      server.steps.Allow(2);
      ASSERT_TRUE(Eventually([&] { return server.Stats().running == 1; }));
      if (reset)
        client.Reset();
      else
        client.Close();
      EXPECT_TRUE(Eventually([&] { return server.http->num_connections() == 0; }));
      EXPECT_TRUE(server.BecomesIdle());
    }
  }
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kCancelled), 4u);
}

TEST(HttpServerTest, StalledReaderIsCutAndFreesItsPages) {
  ServingOptions options;
  options.http.write_stall_timeout = std::chrono::milliseconds(300);
  options.http.send_buffer_bytes = 4096;
  options.frontend.max_stream_bytes = 64 << 10;
  options.engine.max_model_len = 8192;
  options.engine.num_pages = 1024;
  ServingFixture server(options);
  HttpClient client(server.port(), 4096);
  client.SendPost(
      "/v1/completions",
      R"({"prompt":"hello","max_tokens":8000,"ignore_eos":true,"stream":true,"logprobs":20})");
  // The 64 KiB and the queue before them hold a small part of the 8000 tokens.
  EXPECT_TRUE(
      Eventually([&] { return server.Stats().num_finished(FinishReason::kCancelled) == 1; }));
  EXPECT_TRUE(server.EngineIsEmpty());
  EXPECT_TRUE(Eventually([&] { return server.http->num_connections() == 0; }));
}

TEST(HttpServerTest, SixtyFourStreamsAtOnceHaveExactTokenCounts) {
  ServingOptions options;
  options.http.io_threads = 2;
  ServingFixture server(options);
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int i = 0; i < 64; ++i) {
    clients.emplace_back([&, i] {
      HttpClient client(server.port());
      const int max_tokens = 10 + i;
      const ClientReply reply = client.Post(
          "/v1/completions",
          R"({"prompt":"stream )" + std::to_string(i) + R"(","max_tokens":)" +
              std::to_string(max_tokens) +
              R"(,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true})");
      const std::vector<std::string> data = SseData(reply.body);
      int tokens = 0;
      for (const std::string& event : data) {
        if (event == "[DONE]") continue;
        const auto json = nlohmann::json::parse(event);
        for (const auto& choice : json["choices"]) {
          if (choice.contains("token_ids")) tokens += static_cast<int>(choice["token_ids"].size());
        }
      }
      const auto usage = data.size() < 2 ? nlohmann::json()
                                         : nlohmann::json::parse(data[data.size() - 2])["usage"];
      if (tokens == max_tokens && usage["completion_tokens"] == max_tokens &&
          data.back() == "[DONE]")
        ++good;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 64);
  EXPECT_TRUE(server.EngineIsEmpty());
}

TEST(HttpServerTest, DrainRefusesNewWorkAndLetsStreamsEnd) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  HttpClient idle(server.port()), running(server.port());
  EXPECT_EQ(idle.Get("/readyz").status, 200);
  running.SendPost("/v1/completions",
                   R"({"prompt":"ab","max_tokens":100,"ignore_eos":true,"stream":true})");
  server.steps.Allow(1);
  ClientReply head;
  ASSERT_TRUE(running.ReadHead(&head));

  server.health->BeginDrain();
  HttpClient late(server.port());
  ClientReply ready = late.Get("/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.fields["retry-after"], "1");
  EXPECT_EQ(ready.fields["connection"], "close");
  HttpClient worker(server.port());
  ClientReply refused = worker.Post("/v1/completions", R"({"prompt":"ab"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.fields["retry-after"], "1");
  EXPECT_EQ(HttpClient(server.port()).Get("/livez").status, 200);

  server.steps.Open();
  server.engine->Drain(std::chrono::steady_clock::now() + std::chrono::hours(1));
  std::thread stopper([&] { server.http->Stop(std::chrono::minutes(1)); });
  std::string body, piece;
  while (running.ReadChunk(&piece)) body += piece;
  EXPECT_EQ(SseData(body).back(), "[DONE]");
  stopper.join();
  EXPECT_TRUE(running.AtEnd());
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_FALSE(HttpClient(server.port()).connected());
}

TEST(HttpServerTest, StreamsThatOutliveTheDrainLimitEndWithAnErrorEvent) {
  ServingOptions options;
  options.hold_steps = true;
  options.engine.drain_grace_ms = 0;
  ServingFixture server(options);
  HttpClient client(server.port());
  client.SendPost("/v1/completions",
                  R"({"prompt":"ab","max_tokens":500,"ignore_eos":true,"stream":true})");
  server.steps.Allow(1);
  ClientReply head;
  ASSERT_TRUE(client.ReadHead(&head));
  server.health->BeginDrain();
  server.engine->Drain(std::chrono::steady_clock::now());
  server.steps.Open();
  std::string body, piece;
  while (client.ReadChunk(&piece)) body += piece;
  const auto last = nlohmann::json::parse(SseData(body).back());
  EXPECT_EQ(last["error"]["type"], "unavailable_error");
  EXPECT_TRUE(last["error"].contains("param") && last["error"].contains("code") &&
              last["error"].contains("message"));
}

TEST(HttpServerTest, StopCutsConnectionsThatDoNotEnd) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  HttpClient client(server.port());
  client.SendPost("/v1/completions", R"({"prompt":"ab","max_tokens":500,"ignore_eos":true})");
  server.steps.Allow(1);
  ASSERT_TRUE(Eventually([&] { return server.Stats().running == 1; }));
  server.http->Stop(std::chrono::milliseconds(10));
  EXPECT_EQ(server.http->num_connections(), 0);
  EXPECT_TRUE(client.AtEnd());
  EXPECT_TRUE(server.BecomesIdle());
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kCancelled), 1u);
}

TEST(HttpServerTest, HostThatIsNotAnAddressIsRefusedByName) {
  HttpServerOptions options;
  options.host = "no-such-host";
  HttpServer server(options, HttpService());
  const Status status = server.Start();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("no-such-host"), std::string::npos);
}

TEST(HttpServerTest, PortInUseIsRefusedWithItsNumber) {
  ServingFixture first;
  HttpServerOptions options;
  options.port = first.port();
  HttpServer second(options, HttpService());
  const Status status = second.Start();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find(std::to_string(first.port())), std::string::npos);
}

}  // namespace
}  // namespace diffserve
