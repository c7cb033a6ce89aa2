// SPDX-License-Identifier: Apache-2.0
// /v1/messages and /v1/responses over HTTP: the chat route's answers in these formats.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/server/encoder_events.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::EventLines;
using testing::Eventually;
using testing::HttpClient;
using testing::Once;
using testing::ServingFixture;
using testing::ServingOptions;
using Json = nlohmann::json;

constexpr char kChat[] =
    R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}],
        "max_tokens":8,"temperature":0,"ignore_eos":true})";
constexpr char kMessagesBody[] =
    R"({"system":"s","messages":[{"role":"user","content":"hello"}],
        "max_tokens":8,"temperature":0,"ignore_eos":true)";
constexpr char kResponses[] =
    R"({"instructions":"s","input":"hello","max_output_tokens":8,"temperature":0,
        "ignore_eos":true)";

std::string AskChat(HttpClient& client) {
  return client.Post("/v1/chat/completions", kChat).json()["choices"][0]["message"]["content"];
}

Json DataOf(const std::string& line) { return Json::parse(line.substr(line.find(' ') + 1)); }

TEST(ApiRoutesTest, MessagesAnswersAsChatDoesWholeAndStreamed) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string text = AskChat(client);
  ClientReply reply = client.Post("/v1/messages", std::string(kMessagesBody) + "}",
                                  "X-Request-Id: mine\r\n");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json body = reply.json();
  EXPECT_EQ(body["id"], "msg_mine");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["content"], Json::array({{{"type", "text"}, {"text", text}}}));
  EXPECT_EQ(body["stop_reason"], "max_tokens");
  EXPECT_EQ(body["usage"]["output_tokens"], 8);

  reply = client.Post("/v1/messages", std::string(kMessagesBody) + ",\"stream\":true}");
  EXPECT_EQ(reply.fields["content-type"], "text/event-stream; charset=utf-8");
  std::string streamed;
  for (const std::string& line : EventLines(reply.body)) {
    if (line.starts_with("content_block_delta ")) streamed += DataOf(line)["delta"]["text"];
  }
  EXPECT_EQ(streamed, text);
}

TEST(ApiRoutesTest, CountTokensEqualsTheInputTokensOfMessages) {
  ServingFixture server;
  HttpClient client(server.port());
  const Json usage = client.Post("/v1/messages", std::string(kMessagesBody) + "}").json()["usage"];
  const Json counted = client
                           .Post("/v1/messages/count_tokens",
                                 R"({"system":"s","messages":[{"role":"user","content":"hello"}]})")
                           .json();
  EXPECT_EQ(counted, Json({{"input_tokens", usage["input_tokens"].get<int>() +
                                                usage["cache_read_input_tokens"].get<int>()}}));
}

TEST(ApiRoutesTest, MessagesErrorsHaveAnthropicsFormat) {
  ServingOptions options;
  options.keys = "secret\n";
  ServingFixture server(options);
  HttpClient client(server.port());
  const std::string key = "X-Api-Key: secret\r\n";
  const auto type = [&](const ClientReply& reply) {
    EXPECT_EQ(reply.json()["type"], "error") << reply.body;
    EXPECT_FALSE(reply.fields.at("request-id").empty());
    EXPECT_EQ(reply.json()["request_id"], reply.fields.at("request-id")) << reply.body;
    return std::to_string(reply.status) + " " + reply.json()["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(type(client.Post("/v1/messages", "{}", key)), "400 invalid_request_error");
  EXPECT_EQ(client.Post("/v1/messages", "{}", key + "X-Request-Id: r\r\n").json()["request_id"],
            "r");
  EXPECT_EQ(type(client.Post("/v1/messages", "{}")), "401 authentication_error");
  EXPECT_EQ(
      type(client.Post("/v1/messages", std::string(kMessagesBody) + ",\"model\":\"gpt\"}", key)),
      "404 not_found_error");
  EXPECT_EQ(type(client.Post("/v1/messages/count_tokens",
                             R"({"model":"gpt","messages":[{"role":"user","content":"a"}]})", key)),
            "404 not_found_error");
  EXPECT_EQ(type(Once(server.port(), "GET", "/v1/messages", key)), "405 invalid_request_error");
}

// Anthropic's libraries read the id from this field, those of OpenAI from X-Request-Id.
TEST(ApiRoutesTest, EveryReplyOfMessagesHasTheRequestsIdInAnthropicsField) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string id = "X-Request-Id: mine\r\n";
  const auto fields = [](const ClientReply& reply) { return reply.fields; };
  for (const char* end : {"}", ",\"stream\":true}", ",\"model\":\"gpt\"}"}) {
    const auto sent = fields(client.Post("/v1/messages", std::string(kMessagesBody) + end, id));
    EXPECT_EQ(sent.at("request-id"), "mine") << end;
    EXPECT_EQ(sent.at("x-request-id"), "mine") << end;
    EXPECT_EQ(sent.at("anthropic-organization-id"), "diffserve") << end;
  }
  const ClientReply unknown = Once(server.port(), "GET", "/v1/messages/batches", id);
  EXPECT_EQ(unknown.fields.at("request-id"), "mine");
  EXPECT_EQ(unknown.json()["request_id"], "mine");
  const ClientReply refused = client.Post("/v1/messages", "{}",
                                          id + "Transfer-Encoding: nonsense\r\n");
  EXPECT_GE(refused.status, 400);
  EXPECT_EQ(refused.json()["request_id"], refused.fields.at("request-id"));
  EXPECT_EQ(client.Post("/v1/chat/completions", kChat, id).fields.count("request-id"), 0u);
}

TEST(ApiRoutesTest, ResponsesAnswersAsChatDoesWholeStreamedAndStored) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string text = AskChat(client);
  const ClientReply reply = client.Post("/v1/responses", std::string(kResponses) + "}");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json body = reply.json();
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["output"][0]["content"][0]["text"], text);
  EXPECT_EQ(body["usage"]["output_tokens"], 8);
  const std::string path = "/v1/responses/" + body["id"].get<std::string>();
  EXPECT_EQ(client.Get(path).json(), body);

  const std::vector<std::string> lines = EventLines(
      client.Post("/v1/responses", std::string(kResponses) + ",\"stream\":true}").body);
  std::string streamed;
  for (const std::string& line : lines) {
    if (line.starts_with("response.output_text.delta ")) streamed += DataOf(line)["delta"];
  }
  EXPECT_EQ(streamed, text);
  const Json last = DataOf(lines.back())["response"];
  EXPECT_EQ(client.Get("/v1/responses/" + last["id"].get<std::string>()).json(), last);
}

TEST(ApiRoutesTest, StoredResponseCanBeListedContinuedAndDeleted) {
  ServingFixture server;
  HttpClient client(server.port());
  const Json first = client.Post("/v1/responses", std::string(kResponses) + "}").json();
  const std::string id = first["id"], path = "/v1/responses/" + id;
  const Json items = client.Get(path + "/input_items?order=asc&limit=1").json();
  EXPECT_EQ(items["data"][0]["content"][0]["text"], "hello");
  EXPECT_EQ(items["has_more"], false);
  EXPECT_EQ(client.Get(path + "/input_items?limit=0").json()["error"]["param"], "limit");

  const std::string text = first["output"][0]["content"][0]["text"];
  const Json next = client
                        .Post("/v1/responses", Json{{"input", "more"},
                                                    {"previous_response_id", id},
                                                    {"max_output_tokens", 4},
                                                    {"temperature", 0},
                                                    {"ignore_eos", true}}
                                                   .dump())
                        .json();
  const Json by_hand = client
                           .Post("/v1/responses", Json{{"input",
                                                        {{{"role", "user"}, {"content", "hello"}},
                                                         {{"role", "assistant"}, {"content", text}},
                                                         {{"role", "user"}, {"content", "more"}}}},
                                                       {"max_output_tokens", 4},
                                                       {"temperature", 0},
                                                       {"store", false},
                                                       {"ignore_eos", true}}
                                                      .dump())
                           .json();
  EXPECT_EQ(next["previous_response_id"], id);
  EXPECT_EQ(next["output"][0]["content"], by_hand["output"][0]["content"]);
  EXPECT_EQ(next["usage"]["input_tokens"], by_hand["usage"]["input_tokens"]);
  EXPECT_EQ(client.Get("/v1/responses/" + by_hand["id"].get<std::string>()).status, 404)
      << "it was not to be stored";

  ClientReply reply = client.Post(path + "/cancel", "");
  EXPECT_EQ(reply.status, 400) << "it has ended";
  reply = Once(server.port(), "DELETE", path);
  EXPECT_EQ(reply.json(), Json({{"id", id}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(client.Get(path).status, 404);
  EXPECT_EQ(client.Post("/v1/responses", R"({"input":"a","previous_response_id":")" + id + "\"}")
                .json()["error"]["param"],
            "previous_response_id");
}

TEST(ApiRoutesTest, ResponseInProgressCanBeReadAndCancelled) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  HttpClient client(server.port()), other(server.port());
  ASSERT_TRUE(client.SendPost(
      "/v1/responses", R"({"input":"a","max_output_tokens":400,"ignore_eos":true,"stream":true})"));
  server.steps.Allow(2);
  ClientReply reply;
  std::string text;
  ASSERT_TRUE(client.ReadHead(&reply));
  ASSERT_TRUE(client.ReadChunk(&text));
  const std::string id = DataOf(EventLines(text).front())["response"]["id"];
  const std::string path = "/v1/responses/" + id;
  EXPECT_EQ(other.Get(path).json()["status"], "in_progress");
  const ClientReply early = other.Post("/v1/responses",
                                       R"({"input":"b","previous_response_id":")" + id + "\"}");
  EXPECT_EQ(early.json()["error"]["param"], "previous_response_id");
  EXPECT_EQ(other.Post(path + "/cancel", "").json()["status"], "cancelled");
  std::string piece;
  while (client.ReadChunk(&piece)) text += piece;
  EXPECT_EQ(DataOf(EventLines(text).back())["response"]["status"], "cancelled");
  EXPECT_EQ(other.Get(path).json()["status"], "cancelled");
  EXPECT_EQ(other.Post(path + "/cancel", "").status, 400);
  EXPECT_TRUE(server.BecomesIdle());
}

TEST(ApiRoutesTest, ResponseOfAnotherKeyIsNotFound) {
  ServingOptions options;
  options.keys = "one\ntwo\n";
  ServingFixture server(options);
  HttpClient client(server.port());
  const Json body =
      client.Post("/v1/responses", std::string(kResponses) + "}", "Authorization: Bearer one\r\n")
          .json();
  const std::string path = "/v1/responses/" + body["id"].get<std::string>();
  EXPECT_EQ(client.Get(path, "Authorization: Bearer two\r\n").status, 404);
  EXPECT_EQ(Once(server.port(), "DELETE", path, "Authorization: Bearer two\r\n").status, 404);
  EXPECT_EQ(client.Get(path, "Authorization: Bearer one\r\n").status, 200);
}

TEST(ApiRoutesTest, ResponsesErrorsNameTheirOwnMembers) {
  ServingFixture server;
  HttpClient client(server.port());
  const auto param = [&](const std::string& body) {
    const ClientReply reply = client.Post("/v1/responses", body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return reply.json()["error"]["param"];
  };
  EXPECT_EQ(param(R"({"input":"a","max_output_tokens":100000})"), "max_output_tokens");
  EXPECT_EQ(param(Json{{"input", std::string(5000, 'a')}}.dump()), "input");
  EXPECT_EQ(param(Json{{"input", std::string(200'000, 'a')}}.dump()), "input");
}

}  // namespace
}  // namespace diffserve
