// SPDX-License-Identifier: Apache-2.0
// How connections end: clients that leave, and replies that cannot be finished.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "server/http/server.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::Eventually;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;
using testing::SseData;

constexpr size_t kMoreThanIsKept = 200 << 10;  // bytes after a request

constexpr char kLongAnswer[] = R"({"prompt":"hello","max_tokens":480,"ignore_eos":true})";

// Returns when the server, whose steps are held, has the request.
void AskLong(ServingFixture& server, HttpClient& client) {
  client.SendPost("/v1/completions", kLongAnswer);
  ASSERT_TRUE(Eventually([&] { return server.Stats().waiting + server.Stats().running == 1; }));
}

TEST(HttpEndingsTest, ClientThatLeavesAfterManyBytesFreesItsPages) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  for (const bool reset : {true, false}) {
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
    EXPECT_TRUE(server.BecomesIdle());
  }
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kCancelled), 2u);
}

TEST(HttpEndingsTest, ReplyIsCompleteAfterTooManyExtraBytesAndTheConnectionCloses) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  HttpClient client(server.port());
  AskLong(server, client);
  ASSERT_TRUE(client.Send(std::string(kMoreThanIsKept, 'x')));
  ASSERT_TRUE(Eventually([&] { return client.IsDrained(); }));
  server.steps.Open();
  const ClientReply reply = client.ReadReply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 480);
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpEndingsTest, ClientThatNeverStopsSendingIsCut) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  HttpClient client(server.port());
  AskLong(server, client);
  const std::string bytes(1 << 20, 'x');
  int sent = 0;
  while (sent < 1000 && client.Send(bytes)) ++sent;
  EXPECT_LT(sent, 1000);
  EXPECT_TRUE(Eventually([&] { return server.http->num_connections() == 0; }));
  server.steps.Open();
  EXPECT_TRUE(server.EngineIsEmpty());
}

constexpr char kLongStream[] =
    R"({"prompt":"hello","max_tokens":480,"ignore_eos":true,"logprobs":20,"stream":true})";
constexpr char kLongBody[] =
    R"({"prompt":"hello","n":16,"max_tokens":480,"ignore_eos":true,"logprobs":20})";

// All of an answer waits for its reader, however late it is taken.
ServingOptions PatientQueue() {
  ServingOptions options;
  options.frontend.max_stream_bytes = size_t{64} << 20;
  return options;
}

// Buffers so small that an unread answer of this length never fits.
ServingOptions SmallBuffers() {
  ServingOptions options = PatientQueue();
  options.http.send_buffer_bytes = 4096;
  return options;
}
constexpr int kReceiveBytes = 4096;

uint64_t Cut(const ServingFixture& server, HttpCut how) { return server.metrics->num_cut(how); }

// Until the end of the connection.
std::string ReadAll(HttpClient& client) {
  while (client.ReadSome()) {
  }
  return client.buffered();
}

// Returns when the whole answer is made and its head has come: the rest waits for the reader.
void AskWithoutReading(ServingFixture& server, HttpClient& client, const char* body) {
  client.SendPost("/v1/completions", body);
  ClientReply head;
  ASSERT_TRUE(client.ReadHead(&head));
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.fields["transfer-encoding"], "chunked");
  ASSERT_TRUE(server.EngineIsEmpty());
}

TEST(HttpEndingsTest, LongBodyComesInChunksAndIsWhole) {
  ServingFixture server(PatientQueue());
  HttpClient client(server.port());
  ClientReply reply = client.Post("/v1/completions", kLongBody);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.fields.count("transfer-encoding"), 1u);
  EXPECT_EQ(reply.fields["content-type"], "application/json");
  EXPECT_EQ(reply.json()["choices"][0]["logprobs"]["tokens"].size(), 480u);
  EXPECT_EQ(client.Get("/livez").fields.count("content-length"), 1u);
}

TEST(HttpEndingsTest, DrainWaitsForReadersWhileProbesAreAnswered) {
  for (const char* const body : {kLongStream, kLongBody}) {
    ServingFixture server(SmallBuffers());
    HttpClient client(server.port(), kReceiveBytes);
    AskWithoutReading(server, client, body);
    std::thread drain(
        [&] { server.Drain(std::chrono::steady_clock::now() + std::chrono::hours(1)); });
    EXPECT_TRUE(Eventually([&] { return HttpClient(server.port()).Get("/readyz").status == 503; }));
    EXPECT_EQ(HttpClient(server.port()).Get("/livez").status, 200);
    std::string all, piece;
    while (client.ReadChunk(&piece)) all += piece;
    EXPECT_TRUE(client.AtEnd());
    client.Close();
    drain.join();
    EXPECT_EQ(Cut(server, HttpCut::kErrorEvent) + Cut(server, HttpCut::kReset), 0u);
    if (body == kLongStream)
      EXPECT_EQ(SseData(all).back(), "[DONE]");
    else
      EXPECT_EQ(nlohmann::json::parse(all)["usage"]["completion_tokens"], 16 * 480);
  }
}

TEST(HttpEndingsTest, UnreadReplyAtShutdownIsResetAndCounted) {
  for (const char* const body : {kLongStream, kLongBody}) {
    ServingFixture server(SmallBuffers());
    HttpClient client(server.port(), kReceiveBytes);
    AskWithoutReading(server, client, body);
    server.http->Stop(std::chrono::milliseconds(0));
    EXPECT_EQ(Cut(server, HttpCut::kReset), 1u);
    EXPECT_EQ(Cut(server, HttpCut::kErrorEvent), 0u);
    const std::string received = ReadAll(client);
    EXPECT_TRUE(client.WasReset());
    EXPECT_EQ(received.find("0\r\n\r\n"), std::string::npos);
  }
}

// The generated part of the answer is in the system's buffers: the server has nothing left to
// write.
TEST(HttpEndingsTest, ReaderThatStopsDuringTheAnswerIsCutAndCounted) {
  ServingOptions options;
  options.hold_steps = true;
  options.http.write_stall_timeout = std::chrono::milliseconds(300);
  ServingFixture server(options);
  HttpClient client(server.port(), kReceiveBytes);
  client.SendPost("/v1/completions", kLongStream);
  server.steps.Allow(20);
  EXPECT_TRUE(Eventually([&] { return Cut(server, HttpCut::kReset) == 1; }));
  EXPECT_TRUE(Eventually([&] { return server.http->num_connections() == 0; }));
  server.steps.Open();
  EXPECT_TRUE(server.EngineIsEmpty());
}

TEST(HttpEndingsTest, RunningStreamAtShutdownEndsWithAnErrorEvent) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  HttpClient client(server.port());
  client.SendPost("/v1/completions", kLongStream);
  server.steps.Allow(2);
  ClientReply head;
  ASSERT_TRUE(client.ReadHead(&head));
  std::thread stop(
      [&] { server.http->Stop(std::chrono::milliseconds(0), std::chrono::minutes(1)); });
  std::string all, piece;
  while (client.ReadChunk(&piece)) all += piece;
  EXPECT_TRUE(client.AtEnd());
  client.Close();
  stop.join();
  const auto last = nlohmann::json::parse(SseData(all).back());
  EXPECT_EQ(last["error"]["type"], "unavailable_error");
  EXPECT_EQ(Cut(server, HttpCut::kErrorEvent), 1u);
  EXPECT_EQ(Cut(server, HttpCut::kReset), 0u);
  EXPECT_TRUE(server.BecomesIdle());
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kCancelled), 1u);
}

}  // namespace
}  // namespace diffserve
