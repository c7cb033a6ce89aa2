// SPDX-License-Identifier: Apache-2.0
// Streams that are resumed on another connection, through the whole server.
#include <gtest/gtest.h>

#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/http_client.h"
#include "tests/testing/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::Eventually;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;

constexpr char kPath[] = "/v1/completions";
constexpr char kBody[] =
    R"({"prompt":"a","max_tokens":40,"temperature":0,"ignore_eos":true,"stream":true})";
constexpr int kSomeSteps = 20;  // a token that is half a character gives no event
const std::string kResumable = "X-Resumable: true\r\n";

ServingOptions Keeping(size_t bytes = 8 << 20) {
  ServingOptions options;
  options.hold_steps = true;
  options.routes.streams.max_bytes = bytes;
  return options;
}

std::string LastEvent(const std::string& id) { return "Last-Event-ID: " + id + "\r\n"; }

// A streamed reply, read event by event.
class EventReader {
 public:
  explicit EventReader(const ServingFixture& server) : client_(server.port()) {}

  ClientReply Post(const std::string& path, const std::string& body, const std::string& fields) {
    EXPECT_TRUE(client_.SendPost(path, body, fields));
    return client_.ReadReply(/*head_only=*/true);
  }
  // The next event with its id, without the empty line; empty at the end of the reply.
  std::string Next() {
    size_t end = 0;
    while ((end = text_.find("\n\n")) == text_.npos) {
      std::string piece;
      if (!client_.ReadChunk(&piece)) return "";
      if (piece != ": ping\n\n") text_ += piece;
    }
    std::string event = text_.substr(0, end);
    text_.erase(0, end + 2);
    return event;
  }
  std::vector<std::string> Rest() {
    std::vector<std::string> events;
    for (std::string event = Next(); !event.empty(); event = Next()) events.push_back(event);
    return events;
  }
  void Leave() { client_.Close(); }

 private:
  HttpClient client_;
  std::string text_;
};

std::string IdOf(const std::string& event) {
  EXPECT_TRUE(event.starts_with("id: ")) << event;
  return event.substr(4, event.find('\n') - 4);
}
std::string WithNumber(const std::string& id, int number) {
  return id.substr(0, id.rfind(':') + 1) + std::to_string(number);
}

// Begins a stream and reads `count` events of it.
std::vector<std::string> Begin(ServingFixture& server, EventReader& reader, const std::string& path,
                               const std::string& body, int count) {
  server.steps.Allow(kSomeSteps);
  const ClientReply head = reader.Post(path, body, kResumable);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.fields.at("content-type"), "text/event-stream; charset=utf-8");
  std::vector<std::string> events;
  for (int i = 0; i < count; ++i) events.push_back(reader.Next());
  return events;
}

bool CountsFate(const ServingFixture& server, const std::string& fate, int count) {
  const std::string sample = "diffserve_resumable_streams_total{fate=\"" + fate + "\"} " +
                             std::to_string(count) + "\n";
  return server.metrics->Render().find(sample) != std::string::npos;
}

TEST(ResumeTest, StreamsResumeAfterTheLastEventOnAnotherConnection) {
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],"stream":true,)"
                           R"("max_tokens":40,"temperature":0,"ignore_eos":true})";
  const std::pair<std::string, std::string> routes[] = {
      {kPath, kBody},
      {"/v1/chat/completions", chat},
      {"/v1/messages", chat},
      {"/v1/responses", R"({"input":"a","stream":true,"max_output_tokens":40,"temperature":0})"},
      {"/inference/v1/generate",
       R"({"token_ids":[70],"stream":true,"sampling_params":{"max_tokens":40,"temperature":0}})"}};
  ServingFixture server(Keeping());
  int resumed = 0;
  for (const auto& [path, body] : routes) {
    SCOPED_TRACE(path);
    server.steps.Close();
    EventReader first(server);
    const std::vector<std::string> seen = Begin(server, first, path, body, 3);
    const std::string id = IdOf(seen.back());
    EXPECT_EQ(id, WithNumber(id, 3));
    first.Leave();
    ASSERT_TRUE(Eventually([&] { return server.http->num_connections() == 0; }));
    EXPECT_EQ(server.Stats().running, 1) << "it is not cancelled";

    EventReader second(server);
    const ClientReply head = second.Post(path, "", LastEvent(id));
    ASSERT_EQ(head.status, 200);
    EXPECT_EQ(head.fields.at("content-type"), "text/event-stream; charset=utf-8");
    server.steps.Open();
    const std::vector<std::string> rest = second.Rest();
    ASSERT_FALSE(rest.empty());
    for (size_t i = 0; i < rest.size(); ++i)
      EXPECT_EQ(IdOf(rest[i]), WithNumber(id, static_cast<int>(i) + 4));

    EventReader third(server);
    ASSERT_EQ(third.Post(path, body, LastEvent(WithNumber(id, 0))).status, 200);
    std::vector<std::string> all = seen;
    all.insert(all.end(), rest.begin(), rest.end());
    EXPECT_EQ(third.Rest(), all) << "the same bytes again";
    resumed += 2;
    EXPECT_TRUE(CountsFate(server, "resumed", resumed));
    EXPECT_TRUE(server.EngineIsEmpty());
    EXPECT_EQ(HttpClient(server.port()).Post(path, "", LastEvent(IdOf(rest.back()))).status, 204)
        << "there is no more to come";
  }
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kLength), std::size(routes));
}

TEST(ResumeTest, ResumedTokensEqualAnUninterruptedStream) {
  ServingFixture server(Keeping());
  const auto text_of = [](const std::vector<std::string>& events) {
    std::string text;
    for (const std::string& event : events) {
      const std::string data = event.substr(event.find("data: ") + 6);
      if (data != "[DONE]")
        text += nlohmann::json::parse(data)["choices"][0]["text"].get<std::string>();
    }
    return text;
  };
  const std::string greedy =
      R"({"prompt":"same","max_tokens":40,"temperature":0,"ignore_eos":true,"stream":true})";
  EventReader first(server);
  std::vector<std::string> events = Begin(server, first, kPath, greedy, 5);
  first.Leave();
  server.steps.Open();
  EventReader second(server);
  ASSERT_EQ(second.Post(kPath, "", LastEvent(IdOf(events.back()))).status, 200);
  for (const std::string& event : second.Rest()) events.push_back(event);
  EventReader whole(server);
  whole.Post(kPath, greedy, "");
  EXPECT_EQ(text_of(events), text_of(whole.Rest()));
}

TEST(ResumeTest, WithoutTheFieldStreamsHaveNoIdsAndDisconnectCancels) {
  for (const std::string& fields : {std::string(), std::string("X-Resumable: false\r\n")}) {
    ServingFixture server(Keeping());
    EventReader reader(server);
    server.steps.Allow(kSomeSteps);
    EXPECT_EQ(reader.Post(kPath, kBody, fields).status, 200);
    EXPECT_TRUE(reader.Next().starts_with("data: "));
    reader.Leave();
    EXPECT_TRUE(server.BecomesIdle());
    EXPECT_EQ(server.Stats().num_finished(FinishReason::kCancelled), 1u);
  }
}

TEST(ResumeTest, ServerWithoutResumableStreamsSaysSo) {
  ServingFixture server;
  HttpClient client(server.port());
  for (const std::string& fields : {kResumable, LastEvent("abc:1")}) {
    const ClientReply reply = client.Post(kPath, kBody, fields);
    EXPECT_EQ(reply.status, 400) << fields;
    EXPECT_NE(reply.body.find("--resumable-streams-bytes"), std::string::npos);
  }
  ServingFixture keeping(Keeping());
  const ClientReply bad = HttpClient(keeping.port()).Post(kPath, kBody, "X-Resumable: yes\r\n");
  EXPECT_EQ(bad.status, 400);
  EXPECT_NE(bad.body.find("X-Resumable"), std::string::npos);
}

TEST(ResumeTest, UnknownAndDroppedIdsAreErrorsInTheRoutesFormat) {
  ServingFixture server(Keeping(600));  // about three events
  EventReader first(server);
  const std::vector<std::string> seen = Begin(server, first, kPath, kBody, 8);
  const std::string id = IdOf(seen.front());
  HttpClient client(server.port());
  EXPECT_EQ(client.Post(kPath, "", LastEvent(id)).status, 410);
  EXPECT_EQ(client.Post(kPath, "", LastEvent(WithNumber(id, 1000))).status, 404);
  EXPECT_EQ(client.Post(kPath, "", LastEvent("nonsense")).status, 404);
  EXPECT_EQ(client.Post("/v1/chat/completions", "", LastEvent(id)).status, 404);
  const ClientReply messages = client.Post("/v1/messages", "", LastEvent("nonsense"));
  EXPECT_EQ(messages.status, 404);
  EXPECT_EQ(messages.json()["type"], "error") << "as Anthropic has it";
  first.Leave();
}

TEST(ResumeTest, StreamBelongsToTheKeyThatCreatedIt) {
  ServingOptions options = Keeping();
  options.keys = "one-key-0123456789\nanother-key-0123456789\n";
  ServingFixture server(std::move(options));
  const auto key = [](const std::string& name) {
    return "Authorization: Bearer " + name + "-key-0123456789\r\n";
  };
  EventReader first(server);
  server.steps.Allow(kSomeSteps);
  ASSERT_EQ(first.Post(kPath, kBody, kResumable + key("one")).status, 200);
  const std::string id = IdOf(first.Next());
  first.Leave();
  HttpClient client(server.port());
  EXPECT_EQ(client.Post(kPath, "", LastEvent(id) + key("another")).status, 404);
  EXPECT_EQ(client.Post(kPath, "", LastEvent(id)).status, 401);
  server.steps.Open();
  EventReader again(server);
  EXPECT_EQ(again.Post(kPath, "", LastEvent(id) + key("one")).status, 200);
  EXPECT_NE(again.Rest().back().find("[DONE]"), std::string::npos);
}

TEST(ResumeTest, NewConnectionTakesOverFromOneThatSeemsAlive) {
  ServingFixture server(Keeping());
  EventReader first(server), second(server);
  const std::string id = IdOf(Begin(server, first, kPath, kBody, 2).back());
  ASSERT_EQ(second.Post(kPath, "", LastEvent(id)).status, 200);
  for (const std::string& event : first.Rest())
    EXPECT_EQ(event.find("[DONE]"), std::string::npos) << "it ends without its end";
  server.steps.Open();
  EXPECT_NE(second.Rest().back().find("[DONE]"), std::string::npos);
}

TEST(ResumeTest, AbandonedStreamIsCancelled) {
  ServingOptions options = Keeping();
  options.routes.streams.linger = std::chrono::seconds(0);
  ServingFixture server(std::move(options));
  EventReader first(server);
  const std::string id = IdOf(Begin(server, first, kPath, kBody, 2).back());
  first.Leave();
  EXPECT_TRUE(server.BecomesIdle());
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kCancelled), 1u);
  EXPECT_TRUE(Eventually([&] { return CountsFate(server, "expired", 1); }));
  EXPECT_EQ(HttpClient(server.port()).Post(kPath, "", LastEvent(id)).status, 404);
}

TEST(ResumeTest, StreamsBeyondTheLimitAreRefused) {
  ServingFixture server(Keeping(600));
  EventReader first(server);
  Begin(server, first, kPath, kBody, 1);
  HttpClient client(server.port());
  const ClientReply refused = client.Post(kPath, kBody, kResumable);
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(refused.fields.contains("retry-after"));
  server.steps.Open();
  EXPECT_EQ(client.Post(kPath, kBody).status, 200);
  EXPECT_EQ(client.Post(kPath, R"({"prompt":"a","max_tokens":3})", kResumable).status, 200)
      << "what does not stream needs no place";
}

TEST(ResumeTest, RefusedStreamTakesNoPlace) {
  ServingFixture server(Keeping(600));
  HttpClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(
        client.Post(kPath, R"({"prompt":"a","max_tokens":5000,"stream":true})", kResumable).status,
        400);
  }
  server.steps.Open();
  EXPECT_EQ(client.Post(kPath, kBody, kResumable).status, 200);
}

TEST(ResumeTest, ServerStopsWithUnreadStreams) {
  ServingFixture server(Keeping());
  EventReader first(server);
  Begin(server, first, kPath, kBody, 2);
  first.Leave();
  server.StopAll();
}

}  // namespace
}  // namespace diffserve
