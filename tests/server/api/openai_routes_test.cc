// SPDX-License-Identifier: Apache-2.0
// Every route over HTTP: bodies and errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/api/routes.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::Eventually;
using testing::HttpClient;
using testing::Once;
using testing::ServingFixture;
using testing::ServingOptions;
using testing::SseData;
using Json = nlohmann::json;

TEST(OpenAiRoutesTest, ContentTypesOtherThanJsonAreRefused) {
  ServingFixture server;
  const auto status = [&](const std::string& fields) {
    return Once(server.port(), "POST", "/tokenize", fields).status;
  };
  EXPECT_EQ(status("Content-Type: text/plain\r\n"), 415);
  EXPECT_EQ(status("Content-Type: application/jsonp\r\n"), 415);
  EXPECT_EQ(status("Content-Type: multipart/form-data; boundary=x\r\n"), 415);
  EXPECT_EQ(status("Content-Type:\r\n"), 415);
  EXPECT_EQ(status("Content-Type: Application/JSON ; charset=utf-8\r\n"), 400)
      << "taken; the body lacks a prompt";
  EXPECT_EQ(status(""), 400);
}

TEST(OpenAiRoutesTest, RequestIdsAreEchoedOrGenerated) {
  ServingFixture server;
  HttpClient client(server.port());
  EXPECT_EQ(client.Get("/livez", "X-Request-Id: abc-1.2:x_\r\n").fields["x-request-id"],
            "abc-1.2:x_");
  const std::string longest(128, 'a');
  EXPECT_EQ(client.Get("/livez", "X-Request-Id: " + longest + "\r\n").fields["x-request-id"],
            longest);
  for (const std::string& bad : {std::string(129, 'a'), std::string("a b"), std::string("a\"b"),
                                 std::string("\xC3\xA9"), std::string()}) {
    const std::string made =
        client.Get("/livez", "X-Request-Id: " + bad + "\r\n").fields["x-request-id"];
    EXPECT_EQ(made.size(), 32u) << bad;
    EXPECT_EQ(made.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
  ClientReply reply = client.Post("/v1/completions", R"({"prompt":"a","max_tokens":1})",
                                  "X-Request-Id: mine\r\n");
  EXPECT_EQ(reply.fields["x-request-id"], "mine");
  EXPECT_EQ(reply.json()["id"], "cmpl-mine");
  EXPECT_EQ(client.Post("/v1/completions", "{", "X-Request-Id: mine\r\n").fields["x-request-id"],
            "mine");
  reply = client.Post("/v1/completions", R"({"prompt":"a","max_tokens":1,"stream":true})",
                      "X-Request-Id: mine\r\n");
  EXPECT_EQ(reply.fields["x-request-id"], "mine");
}

TEST(OpenAiRoutesTest, ModelsAreListedWithTheirLength) {
  ServingOptions options;
  options.frontend.names.name = "org/tiny model";
  ServingFixture server(options);
  HttpClient client(server.port());
  const Json list = client.Get("/v1/models").json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "org/tiny model");
  EXPECT_EQ(list["data"][0]["max_model_len"], 512);
  EXPECT_EQ(list["data"][0]["root"], "tiny-root");
  EXPECT_EQ(client.Get("/v1/models/org%2Ftiny%20model").json()["object"], "model");
  EXPECT_EQ(client.Get("/v1/models/org/tiny%20model").status, 200);
  for (const std::string& name : {std::string("tiny"), std::string("org%252Ftiny%20model"),
                                  std::string("..%2f..%2fetc%2fpasswd"), std::string("%"),
                                  std::string("%zz"), std::string("%00"), std::string(7000, 'm')}) {
    const ClientReply reply = client.Get("/v1/models/" + name);
    EXPECT_EQ(reply.status, 404) << name;
    EXPECT_EQ(reply.json()["error"]["code"], "model_not_found");
  }
  EXPECT_EQ(client.Post("/v1/completions", R"({"prompt":"a","model":"gpt-4"})").status, 404);
  EXPECT_EQ(client.Post("/tokenize", R"({"prompt":"a","model":"gpt-4"})").status, 404);
}

TEST(OpenAiRoutesTest, TokenizeAndDetokenizeAreInverse) {
  ServingFixture server;
  HttpClient client(server.port());
  const Json tokens =
      client
          .Post("/tokenize",
                R"({"prompt":"héllo wörld","add_special_tokens":false,"return_token_strs":true})")
          .json();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], 512);
  EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
  const Json text = client.Post("/detokenize", Json{{"tokens", tokens["tokens"]}}.dump()).json();
  EXPECT_EQ(text["prompt"], "héllo wörld");
  EXPECT_EQ(client.Post("/detokenize", R"({"tokens":[100000]})").json()["error"]["param"],
            "tokens");
  const Json chat =
      client.Post("/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})").json();
  const Json longer =
      client
          .Post(
              "/tokenize",
              R"({"messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"shout":true}})")
          .json();
  EXPECT_EQ(chat["count"].get<int>() + 1, longer["count"].get<int>());
}

TEST(OpenAiRoutesTest, SmallRoutesHaveTheirBodies) {
  ServingFixture server;
  HttpClient client(server.port());
  EXPECT_TRUE(client.Get("/version").json()["version"].is_string());
  EXPECT_EQ(client.Get("/load").json()["server_load"], 0);
  ClientReply metrics = client.Get("/metrics");
  EXPECT_NE(metrics.body.find("\ndiffserve_"), std::string::npos);
  EXPECT_EQ(metrics.fields["content-type"], "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(client.Get("/health").status, 200);
  server.health->Fail("device lost");
  const ClientReply ready = client.Get("/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.json()["error"]["message"], "device lost");
  EXPECT_EQ(client.Get("/livez").status, 200);
}

TEST(OpenAiRoutesTest, EngineThatMakesNoProgressIsNotReady) {
  EngineStats stats;
  Health health([&stats] { return stats; });
  EXPECT_TRUE(health.Ready().ok());
  stats.seconds_since_progress = 4.9;
  EXPECT_TRUE(health.Ready().ok());
  stats.seconds_since_progress = 5.1;
  EXPECT_EQ(health.Ready().code(), StatusCode::kUnavailable);
  stats.seconds_since_progress = 0;
  stats.failed = true;
  EXPECT_EQ(health.Ready().code(), StatusCode::kUnavailable);
}

TEST(OpenAiRoutesTest, CompletionIsEqualWholeAndStreamed) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string common =
      R"("prompt":"the same words","max_tokens":20,"temperature":0,"ignore_eos":true)";
  const Json whole = client.Post("/v1/completions", "{" + common + "}").json();
  ClientReply reply = client.Post(
      "/v1/completions",
      "{" + common + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_EQ(reply.fields["content-type"], "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.fields["cache-control"], "no-cache");
  const std::vector<std::string> data = SseData(reply.body);
  ASSERT_GE(data.size(), 3u);
  EXPECT_EQ(data.back(), "[DONE]");
  std::string text;
  for (size_t i = 0; i + 2 < data.size(); ++i)
    text += Json::parse(data[i])["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(whole["choices"][0]["text"], text);
  EXPECT_EQ(Json::parse(data[data.size() - 3])["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(Json::parse(data[data.size() - 2])["usage"]["completion_tokens"], 20);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 20);
  EXPECT_EQ(whole["system_fingerprint"], "fp_test");
}

TEST(OpenAiRoutesTest, ChatUsesTheTemplateAndTheRemainingContext) {
  ServingFixture server;
  HttpClient client(server.port());
  const Json body =
      client
          .Post(
              "/v1/chat/completions",
              R"({"messages":[{"role":"user","content":"hi"}],"ignore_eos":true,"return_token_ids":true})")
          .json();
  const int prompt_tokens = body["usage"]["prompt_tokens"];
  EXPECT_EQ(body["prompt_token_ids"].size(), static_cast<size_t>(prompt_tokens));
  EXPECT_EQ(body["usage"]["completion_tokens"], 512 - prompt_tokens);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");

  ServingOptions without;
  without.with_template = false;
  ServingFixture plain(without);
  const ClientReply refused = HttpClient(plain.port())
                                  .Post("/v1/chat/completions",
                                        R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "messages");
}

TEST(OpenAiRoutesTest, RepeatedPromptReportsCachedTokens) {
  ServingFixture server;
  HttpClient client(server.port());
  std::string prompt;
  for (int i = 0; i < 40; ++i) prompt += "word" + std::to_string(i) + " ";
  const std::string body = Json{{"prompt", prompt}, {"max_tokens", 1}}.dump();
  EXPECT_EQ(client.Post("/v1/completions", body)
                .json()["usage"]["prompt_tokens_details"]["cached_tokens"],
            0);
  EXPECT_GE(client.Post("/v1/completions", body)
                .json()["usage"]["prompt_tokens_details"]["cached_tokens"],
            16);
  const std::string salted =
      Json{{"prompt", prompt}, {"max_tokens", 1}, {"cache_salt", "mine"}}.dump();
  EXPECT_EQ(client.Post("/v1/completions", salted)
                .json()["usage"]["prompt_tokens_details"]["cached_tokens"],
            0);
}

TEST(OpenAiRoutesTest, EchoWithLogprobsScoresThePrompt) {
  ServingFixture server;
  HttpClient client(server.port());
  for (const char* stream : {"false", "true"}) {
    const std::string body =
        R"({"prompt":[70,71,72,73],"max_tokens":0,"echo":true,"logprobs":1,"temperature":0,"seed":1234)";
    const ClientReply reply = client.Post("/v1/completions", body + ",\"stream\":" + stream + "}");
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json json = stream == std::string("true") ? Json::parse(SseData(reply.body).at(0))
                                                    : reply.json();
    const Json logprobs = json["choices"][0]["logprobs"];
    ASSERT_EQ(logprobs["tokens"].size(), 4u) << json;
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    for (int i = 1; i < 4; ++i) EXPECT_TRUE(logprobs["token_logprobs"][i].is_number());
    EXPECT_EQ(json["choices"][0]["text"],
              server.frontend->Detokenize({70, 71, 72, 73}, "").value());
  }
}

TEST(OpenAiRoutesTest, SeveralPromptsAndContinuationsAreAllAnswered) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string request =
      R"({"prompt":["one","two","three"],"n":2,"max_tokens":4,"ignore_eos":true,"return_token_ids":true})";
  const Json body = client.Post("/v1/completions", request).json();
  ASSERT_EQ(body["choices"].size(), 6u);
  EXPECT_EQ(body["usage"]["completion_tokens"], 24);
  int prompt_tokens = 0;
  for (int i = 0; i < 6; i += 2)
    prompt_tokens += static_cast<int>(body["choices"][i]["prompt_token_ids"].size());
  EXPECT_EQ(body["usage"]["prompt_tokens"], prompt_tokens);
}

TEST(OpenAiRoutesTest, EqualSeedsRepeatAndMissingSeedsDoNot) {
  ServingFixture server;
  HttpClient client(server.port());
  const auto text = [&](const std::string& extra) {
    return client
        .Post("/v1/completions",
              R"({"prompt":"a","max_tokens":100,"ignore_eos":true,"return_token_ids":true)" +
                  extra + "}")
        .json()["choices"][0]["token_ids"]
        .dump();
  };
  EXPECT_EQ(text(R"(,"seed":5)"), text(R"(,"seed":5)"));
  EXPECT_NE(text(R"(,"seed":5)"), text(R"(,"seed":6)"));
  EXPECT_NE(text(""), text(""));
}

TEST(OpenAiRoutesTest, StopStringEndsTheTextAndIsReported) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string common =
      R"("prompt":"stop here","max_tokens":60,"temperature":0,"ignore_eos":true)";
  const std::string text =
      client.Post("/v1/completions", "{" + common + "}").json()["choices"][0]["text"];
  size_t begin = text.size() / 2;
  while ((static_cast<unsigned char>(text[begin]) & 0x80) != 0) ++begin;
  const std::string stop = text.substr(begin, 1);
  for (const bool include : {false, true}) {
    const Json choice = client
                            .Post("/v1/completions", "{" + common +
                                                         ",\"stop\":" + Json(stop).dump() +
                                                         ",\"include_stop_str_in_output\":" +
                                                         (include ? "true" : "false") + "}")
                            .json()["choices"][0];
    EXPECT_EQ(choice["text"], text.substr(0, text.find(stop) + (include ? stop.size() : 0)));
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(choice["stop_reason"], stop);
  }
  EXPECT_TRUE(server.EngineIsEmpty());
}

TEST(OpenAiRoutesTest, ErrorsAreOpenAiObjectsWithTheirStatus) {
  ServingFixture server;
  HttpClient client(server.port());
  struct Case {
    std::string body;
    int status;
    Json param;
  };
  const std::string long_text(3000, 'x');
  const std::vector<Case> cases = {
      {"", 400, nullptr},
      {"{", 400, nullptr},
      {"[]", 400, nullptr},
      {"{}", 400, "prompt"},
      {R"({"prompt":"a","n":0})", 400, "n"},
      {R"({"prompt":"a","max_tokens":100000})", 400, "max_tokens"},
      {R"({"prompt":"a","max_tokens":512})", 400, "max_tokens"},
      {Json{{"prompt", std::vector<int>(512, 5)}}.dump(), 400, "prompt"},
      {Json{{"prompt", std::vector<int>(513, 5)}}.dump(), 400, "prompt"},
      {R"({"prompt":[5,401]})", 400, "prompt"},
      {R"({"prompt":"a","tools":[{}]})", 400, "tools"},
      {R"({"prompt":"a","model":"b"})", 404, "model"},
  };
  for (const Case& c : cases) {
    const ClientReply reply = client.Post("/v1/completions", c.body);
    EXPECT_EQ(reply.status, c.status) << c.body.substr(0, 80);
    const Json error = reply.json()["error"];
    EXPECT_EQ(error.size(), 4u) << reply.body;
    EXPECT_EQ(error["param"], c.param) << c.body.substr(0, 80) << " " << reply.body;
    EXPECT_TRUE(error["message"].is_string() && error["type"].is_string()) << reply.body;
  }
  EXPECT_EQ(
      client.Post("/v1/completions", Json{{"prompt", long_text}, {"max_tokens", 1}}.dump()).status,
      400);
  EXPECT_TRUE(server.EngineIsEmpty());
}

TEST(OpenAiRoutesTest, AttentionMapsAreRefusedWithoutAnAttentionSource) {
  ServingFixture server;
  HttpClient client(server.port());
  const ClientReply reply = client.Post("/v1/attention", R"({"text":"a"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("need a model whose layers all have their own K and V"),
            std::string::npos);
}

TEST(OpenAiRoutesTest, LargeBodiesAreServed) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string padding = ",\"user\":\"" + std::string(300'000, 'u') + "\"}";
  const std::string common =
      R"({"prompt":"large","max_tokens":5,"temperature":0,"ignore_eos":true)";
  const Json small = client.Post("/v1/completions", common + "}").json();
  ClientReply large = client.Post("/v1/completions", common + padding, "X-Request-Id: big\r\n");
  EXPECT_EQ(large.json()["choices"], small["choices"]);
  EXPECT_EQ(large.fields["x-request-id"], "big");
  EXPECT_EQ(
      SseData(client.Post("/v1/completions", common + ",\"stream\":true" + padding).body).back(),
      "[DONE]");
  EXPECT_EQ(client.Post("/v1/completions", R"({"prompt":7)" + padding).json()["error"]["param"],
            "prompt");
  EXPECT_EQ(client.Post("/v1/completions", common + padding + "}").status, 400);
  EXPECT_EQ(client.Post("/tokenize", R"({"prompt":"ab")" + padding).json()["count"],
            client.Post("/tokenize", R"({"prompt":"ab"})").json()["count"]);
  EXPECT_EQ(client.Post("/detokenize", R"({"tokens":[70])" + padding).status, 200);
  {
    HttpClient gone(server.port());
    gone.SendPost("/v1/completions", common + padding);
  }
  EXPECT_TRUE(server.EngineIsEmpty());
}

TEST(OpenAiRoutesTest, OverloadReturnsRetryAfter) {
  ServingOptions options;
  options.engine.max_num_seqs = 1;
  options.engine.max_waiting_requests = 2;
  options.hold_steps = true;
  ServingFixture server(options);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    clients.back()->SendPost(
        "/v1/completions",
        i % 2 == 0 ? R"({"prompt":"a","max_tokens":100,"ignore_eos":true})"
                   : R"({"prompt":"a","max_tokens":100,"ignore_eos":true,"stream":true})");
  }
  EXPECT_TRUE(Eventually([&] { return server.Refused(RefusalReason::kQueueFull) == 10; }));
  server.steps.Open();
  int served = 0, refused = 0;
  for (const auto& client : clients) {
    ClientReply reply = client->ReadReply();
    if (reply.status == 200) ++served;
    if (reply.status != 429) continue;
    ++refused;
    EXPECT_EQ(reply.fields["retry-after"], "1");
    EXPECT_EQ(reply.json()["error"]["code"], "rate_limit_exceeded");
    EXPECT_EQ(reply.fields["content-type"], "application/json");
  }
  EXPECT_EQ(served, 2) << "the one whose first step is held counts as waiting";
  EXPECT_EQ(refused, 10);
}

TEST(OpenAiRoutesTest, RequestThatWouldWaitTooLongReturnsRetryAfter) {
  ServingOptions options;
  options.engine.max_queue_wait_s = 0;  // has passed when the request is counted
  ServingFixture server(options);
  HttpClient client(server.port());
  for (const char* body : {R"({"prompt":"b"})", R"({"prompt":"b","stream":true})"}) {
    ClientReply reply = client.Post("/v1/completions", body);
    EXPECT_EQ(reply.status, 429);
    EXPECT_EQ(reply.fields["retry-after"], "1");
    EXPECT_EQ(reply.fields["content-type"], "application/json");
    EXPECT_THAT(reply.body, ::testing::HasSubstr("the request would wait"));
  }
  EXPECT_EQ(server.Refused(RefusalReason::kQueueWait), 2u);
}

TEST(OpenAiRoutesTest, RowWithNaNEndsOnlyItsOwnRequest) {
  ServingOptions options;
  options.executor.is_corrupt = [](RequestId, int position) { return position == 40; };
  ServingFixture server(options);
  HttpClient client(server.port());
  EXPECT_EQ(
      client.Post("/v1/completions", R"({"prompt":"a","max_tokens":10,"ignore_eos":true})").status,
      200);
  const ClientReply whole = client.Post("/v1/completions",
                                        R"({"prompt":"a","max_tokens":100,"ignore_eos":true})");
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json()["error"]["type"], "server_error");
  const ClientReply streamed = client.Post(
      "/v1/completions", R"({"prompt":"a","max_tokens":100,"ignore_eos":true,"stream":true})");
  EXPECT_EQ(streamed.status, 200);
  EXPECT_TRUE(Json::parse(SseData(streamed.body).back()).contains("error"));
}

TEST(OpenAiRoutesTest, CancelledRequestEndsAndCannotBeCancelledTwice) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  HttpClient client(server.port());
  client.SendPost("/v1/completions", R"({"prompt":"a","max_tokens":500,"ignore_eos":true})",
                  "X-Request-Id: victim\r\n");
  server.steps.Allow(1);
  ASSERT_TRUE(Eventually([&] { return server.Stats().running == 1; }));
  EXPECT_FALSE(server.frontend->Cancel("127.0.0.2", "victim"));
  EXPECT_FALSE(server.frontend->Cancel("127.0.0.1", "another"));
  EXPECT_TRUE(server.frontend->Cancel("127.0.0.1", "victim"));
  EXPECT_EQ(client.ReadReply().status, 499);
  EXPECT_FALSE(server.frontend->Cancel("127.0.0.1", "victim"));
  server.steps.Open();
  EXPECT_TRUE(server.EngineIsEmpty());
  EXPECT_EQ(server.Stats().num_finished(FinishReason::kCancelled), 1u);
}

}  // namespace
}  // namespace diffserve
