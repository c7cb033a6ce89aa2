// How connections end: clients that leave, and replies that cannot be finished.
#include <gtest/gtest.h>

#include <string>

#include "server/http/server.h"
#include "tests/testing/http_client.h"
#include "tests/testing/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::Eventually;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;

constexpr size_t kMoreThanIsKept = 200 << 10;  // behind a request

constexpr char kLongAnswer[] = R"({"prompt":"hello","max_tokens":480,"ignore_eos":true})";

TEST(HttpEndingsTest, AClientThatLeavesBehindManyBytesFreesItsPages) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  for (const bool reset : {true, false}) {
    server.steps.Close();
    HttpClient client(server.port());
    client.SendPost("/v1/completions", kLongAnswer);
    server.steps.Allow(2);
    ASSERT_TRUE(Eventually([&] { return server.Stats().running == 1; }));
    ASSERT_TRUE(client.Send(std::string(kMoreThanIsKept, 'x')));
    if (reset)
      client.Reset();
    else
      client.Close();
    EXPECT_TRUE(Eventually([&] { return server.http->num_connections() == 0; }));
    server.steps.Open();
    EXPECT_TRUE(server.EngineIsEmpty());
  }
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kCancelled), 2u);
}

TEST(HttpEndingsTest, BehindManyBytesTheReplyIsWholeAndTheConnectionEnds) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  HttpClient client(server.port());
  client.SendPost("/v1/completions", kLongAnswer);
  ASSERT_TRUE(Eventually([&] { return server.Stats().waiting + server.Stats().running == 1; }));
  ASSERT_TRUE(client.Send(std::string(kMoreThanIsKept, 'x')));
  server.steps.Open();
  const ClientReply reply = client.ReadReply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 480);
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpEndingsTest, AClientThatNeverStopsSendingIsCut) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  HttpClient client(server.port());
  client.SendPost("/v1/completions", kLongAnswer);
  ASSERT_TRUE(Eventually([&] { return server.Stats().waiting + server.Stats().running == 1; }));
  const std::string bytes(1 << 20, 'x');
  int sent = 0;
  while (sent < 1000 && client.Send(bytes)) ++sent;
  EXPECT_LT(sent, 1000);
  EXPECT_TRUE(Eventually([&] { return server.http->num_connections() == 0; }));
  server.steps.Open();
  EXPECT_TRUE(server.EngineIsEmpty());
}

}  // namespace
}  // namespace diffserve
