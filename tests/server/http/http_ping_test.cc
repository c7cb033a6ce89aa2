// SPDX-License-Identifier: Apache-2.0
// Comments in an event stream that is silent for a while.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;

constexpr char kPing[] = ": ping\n\n";
constexpr char kPingedStream[] =
    R"({"prompt":"ab","max_tokens":4,"temperature":0,"ignore_eos":true,"stream":true})";

// Steps wait for the test; an answer's head is sent with its first token.
ServingOptions HeldWithPings(int ping_ms) {
  ServingOptions options;
  options.hold_steps = true;
  options.http.ping_interval = std::chrono::milliseconds(ping_ms);
  return options;
}

// The stream without its pings.
std::string Events(HttpClient& client, int* num_pings) {
  std::string events, piece;
  while (client.ReadChunk(&piece)) {
    if (piece == kPing)
      ++*num_pings;
    else
      events += piece;
  }
  return events;
}

TEST(HttpPingTest, SilentStreamIsKeptAliveByComments) {
  ServingFixture server(HeldWithPings(20));
  HttpClient client(server.port());
  client.SendPost("/v1/completions", kPingedStream);
  server.steps.Allow(1);  // the prompt, and the first token
  ClientReply reply;
  ASSERT_TRUE(client.ReadHead(&reply));
  std::string piece;
  ASSERT_TRUE(client.ReadChunk(&piece));
  while (piece != kPing) ASSERT_TRUE(client.ReadChunk(&piece));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.ReadChunk(&piece));
    EXPECT_EQ(piece, kPing) << "as long as the silence lasts";
  }
  server.steps.Open();
  int pings = 0;
  const std::string events = Events(client, &pings);
  EXPECT_EQ(events.find(": ping"), std::string::npos) << "pings stand between events";
  EXPECT_EQ(testing::SseData(events).back(), "[DONE]");

  client.SendGet("/livez");
  EXPECT_EQ(client.ReadReply().status, 200) << "the connection goes on as before";
}

TEST(HttpPingTest, NothingIsSentBeforeTheReplyBegins) {
  ServingFixture server(HeldWithPings(1));
  HttpClient client(server.port());
  client.SendPost("/v1/completions", kPingedStream);
  server.steps.WaitForArrival();
  EXPECT_FALSE(client.ReadSome(100)) << client.buffered();
  server.steps.Open();
  ClientReply reply;
  ASSERT_TRUE(client.ReadHead(&reply));
  EXPECT_EQ(reply.status, 200);
  int pings = 0;
  EXPECT_EQ(testing::SseData(Events(client, &pings)).back(), "[DONE]");
}

TEST(HttpPingTest, WithoutIntervalNoPingIsSent) {
  ServingFixture server(HeldWithPings(0));
  HttpClient client(server.port());
  client.SendPost("/v1/completions", kPingedStream);
  server.steps.Allow(1);
  ClientReply reply;
  ASSERT_TRUE(client.ReadHead(&reply));
  while (client.ReadSome(100)) continue;  // what may come with the first token
  server.steps.Open();
  int pings = 0;
  EXPECT_EQ(testing::SseData(Events(client, &pings)).back(), "[DONE]");
  EXPECT_EQ(pings, 0);
}

TEST(HttpPingTest, WholeReplyHasNoPings) {
  ServingFixture server(HeldWithPings(1));
  HttpClient client(server.port());
  client.SendPost("/v1/completions", R"({"prompt":"ab","max_tokens":2})");
  server.steps.WaitForArrival();
  EXPECT_FALSE(client.ReadSome(50));
  server.steps.Open();
  EXPECT_TRUE(client.ReadReply().json().contains("choices"));
}

TEST(HttpPingTest, SilentStreamEndsWhenItsClientLeaves) {
  ServingFixture server(HeldWithPings(1));
  {
    HttpClient client(server.port());
    client.SendPost("/v1/completions", kPingedStream);
    server.steps.Allow(1);
    ClientReply reply;
    ASSERT_TRUE(client.ReadHead(&reply));
    std::string piece;
    while (piece != kPing) ASSERT_TRUE(client.ReadChunk(&piece));
  }
  EXPECT_TRUE(server.BecomesIdle());
}

}  // namespace
}  // namespace diffserve
