// SPDX-License-Identifier: Apache-2.0
// Responses in OpenAI's format, assembled from events, whole and streamed.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/api/openai/encoder.h"
#include "tests/testing/server/encoder_events.h"
#include "tests/testing/server/http_client.h"

namespace diffserve {
namespace {

using Json = nlohmann::json;

SampleResult Token(int32_t id, float logprob, std::vector<TokenLogprob> top = {}) {
  return {.token = id, .logprob = logprob, .top_logprobs = std::move(top)};
}

// A response fed with the usual events: one prompt "ab" (ids 10, 11), tokens "x" and "yz".
class OpenAiResponseTest : public ::testing::Test {
 protected:
  std::unique_ptr<OpenAiResponse> Make() {
    return std::make_unique<OpenAiResponse>(
        request_, OpenAiIdentity{"cmpl-1", "tiny", "fp", 123},
        TokenTexts{[this](int32_t id) { return bytes_.at(id); },
                   [this](int32_t id) {
                     const std::string& bytes = bytes_.at(id);
                     return bytes.starts_with(' ') ? bytes.substr(1) : bytes;
                   },
                   [](int32_t id) { return id == 10; }});
  }
  // Frames for a stream, the body otherwise.
  std::string Run(std::vector<ResponseDelta> deltas, Status end = {}) {
    std::vector<ResponseEvent> events = {ResponseStarted{{{{10, 11}, "ab"}}}};
    if (request_.echo && request_.logprobs) {
      const std::vector<SampleResult> scores = {Token(11, -1.5f, {{11, -1.5f}, {12, -2.0f}})};
      events.push_back(
          ResponsePromptLogprobs{0, std::make_shared<const std::vector<SampleResult>>(scores)});
    }
    for (ResponseDelta& delta : deltas) events.push_back(std::move(delta));
    events.push_back(ResponseDone{end, {2, 2, 1}});
    return Written(events);
  }
  std::string Written(const std::vector<ResponseEvent>& events) {
    return testing::EncodedText([this] { return Make(); }, events);
  }
  static std::vector<ResponseDelta> Deltas() {
    ResponseDelta first, last;
    first.text = "x";
    first.tokens = {Token(1, -0.5f, {{1, -0.5f}, {2, -1.0f}})};
    last.text = "yz";
    last.tokens = {Token(3, -0.25f, {{4, -0.125f}, {5, -3.0f}})};
    last.finish = FinishReason::kStop;
    last.stop_reason = std::string("!");
    return {first, last};
  }
  std::vector<Json> Stream(std::vector<ResponseDelta> deltas) {
    std::vector<Json> events;
    const std::vector<std::string> data = testing::SseData(Run(std::move(deltas)));
    EXPECT_EQ(data.back(), "[DONE]");
    for (size_t i = 0; i + 1 < data.size(); ++i) events.push_back(Json::parse(data[i]));
    return events;
  }

  OpenAiRequest request_;
  std::map<int32_t, std::string> bytes_{{1, "x"},    {2, "q"},     {3, "yz"}, {4, "w"},
                                        {5, "\xE2"}, {10, "<10>"}, {11, "b"}, {12, "c"}};
};

TEST_F(OpenAiResponseTest, CompletionHasTheObjectsMembers) {
  const Json body = Json::parse(Run(Deltas()));
  EXPECT_EQ(body["id"], "cmpl-1");
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["created"], 123);
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["system_fingerprint"], "fp");
  EXPECT_EQ(
      body["choices"],
      Json::parse(
          R"([{"index":0,"text":"xyz","logprobs":null,"finish_reason":"stop","stop_reason":"!"}])"));
  EXPECT_EQ(body["usage"], Json::parse(R"({"prompt_tokens":2,"completion_tokens":2,"total_tokens":4,
                                           "prompt_tokens_details":{"cached_tokens":1}})"));
}

TEST_F(OpenAiResponseTest, ChatCompletionHasTheObjectsMembers) {
  request_.chat = true;
  const Json body = Json::parse(Run(Deltas()));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(
      body["choices"],
      Json::parse(R"([{"index":0,"message":{"role":"assistant","content":"xyz","refusal":null},
                                              "logprobs":null,"finish_reason":"stop","stop_reason":"!"}])"));
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

TEST_F(OpenAiResponseTest, UsageSaysWhatBecameOfThePrediction) {
  request_.chat = true;
  const auto details = [&] {
    std::vector<ResponseEvent> events = {ResponseStarted{{{{10, 11}, "ab"}}}};
    for (ResponseDelta& delta : Deltas()) events.push_back(std::move(delta));
    events.push_back(ResponseDone{{}, {.completion_tokens = 2, .prediction = {5, 3}}});
    return Json::parse(Written(events))["usage"]["completion_tokens_details"];
  };
  EXPECT_TRUE(details().is_null());
  request_.predicts = true;
  EXPECT_EQ(details(),
            Json::parse(R"({"accepted_prediction_tokens":5,"rejected_prediction_tokens":3})"));
}

TEST_F(OpenAiResponseTest, CompletionLogprobsAreFourParallelLists) {
  request_.logprobs = true;
  request_.generate.sampling.num_logprobs = 2;
  const Json logprobs = Json::parse(Run(Deltas()))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs, Json::parse(R"({"tokens":["x","yz"],"token_logprobs":[-0.5,-0.25],
      "top_logprobs":[{"x":-0.5,"q":-1.0},{"w":-0.125,"bytes:\\xe2":-3.0,"yz":-0.25}],"text_offset":[0,1]})"));
}

TEST_F(OpenAiResponseTest, EchoPrependsThePrompt) {
  request_.echo = true;
  request_.logprobs = true;
  request_.generate.sampling.num_logprobs = 1;
  const Json choice = Json::parse(Run(Deltas()))["choices"][0];
  EXPECT_EQ(choice["text"], "abxyz");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json::parse(R"(["<10>","b","x","yz"])"));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json::parse("[null,-1.5,-0.5,-0.25]"));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0], nullptr);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1], Json::parse(R"({"b":-1.5})"));
}

TEST_F(OpenAiResponseTest, EchoedPromptOfOneTokenIsListedToo) {
  request_.echo = true;
  request_.logprobs = true;
  request_.prompt_logprobs = 0;
  const std::string body = Written(
      {ResponseStarted{{{{10}, "a"}}}, Deltas()[1], ResponseDone{{}, {1, 1, 0}}});
  const Json choice = Json::parse(body)["choices"][0];
  EXPECT_EQ(choice["logprobs"]["tokens"], Json::parse(R"(["<10>","yz"])"));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json::parse("[null,-0.25]"));
  EXPECT_EQ(choice["prompt_logprobs"], Json::parse("[null]"));
}

TEST_F(OpenAiResponseTest, ChatLogprobsCarryTheBytes) {
  request_.chat = true;
  request_.logprobs = true;
  request_.generate.sampling.num_logprobs = 2;
  const Json content = Json::parse(Run(Deltas()))["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "x");
  EXPECT_EQ(content[0]["bytes"], Json::parse("[120]"));
  EXPECT_EQ(content[1]["top_logprobs"][1]["token"], "\xEF\xBF\xBD");
  EXPECT_EQ(content[1]["top_logprobs"][1]["bytes"], Json::parse("[226]"));
}

TEST_F(OpenAiResponseTest, ImpossibleTokenHasAFiniteLogprob) {
  request_.logprobs = true;
  request_.generate.sampling.num_logprobs = 0;
  ResponseDelta delta;
  delta.tokens = {Token(1, -std::numeric_limits<float>::infinity())};
  delta.finish = FinishReason::kLength;
  EXPECT_EQ(Json::parse(Run({delta}))["choices"][0]["logprobs"]["token_logprobs"][0], -9999.0);
}

TEST_F(OpenAiResponseTest, StreamedChatBeginsWithTheRoleAndEndsWithTheReason) {
  request_.chat = true;
  request_.stream = true;
  const std::vector<Json> events = Stream(Deltas());
  ASSERT_EQ(events.size(), 3u);
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], "cmpl-1");
    EXPECT_FALSE(event.contains("usage"));
    EXPECT_TRUE(event["choices"][0].contains("logprobs"));
  }
  EXPECT_EQ(events[0]["choices"][0]["delta"], Json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_EQ(events[0]["choices"][0]["finish_reason"], nullptr);
  EXPECT_EQ(events[1]["choices"][0]["delta"], Json::parse(R"({"content":"x"})"));
  EXPECT_EQ(events[2]["choices"][0]["delta"], Json::parse(R"({"content":"yz"})"));
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events[2]["choices"][0]["stop_reason"], "!");
}

TEST_F(OpenAiResponseTest, IncludedUsageIsNullUntilItsOwnChunk) {
  request_.stream = true;
  request_.include_usage = true;
  const std::vector<Json> events = Stream(Deltas());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_TRUE(events[0].at("usage").is_null());
  EXPECT_TRUE(events[1].at("usage").is_null());
  EXPECT_EQ(events[2]["choices"], Json::array());
  EXPECT_EQ(events[2]["usage"]["total_tokens"], 4);
  EXPECT_EQ(events[2]["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

TEST_F(OpenAiResponseTest, ContinuousUsageCountsUp) {
  request_.stream = true;
  request_.include_usage = true;
  request_.continuous_usage = true;
  const std::vector<Json> events = Stream(Deltas());
  EXPECT_EQ(events[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(events[1]["usage"]["completion_tokens"], 2);
  EXPECT_EQ(events[1]["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(events[1]["usage"]["total_tokens"], 4);
  EXPECT_EQ(events[2]["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

TEST_F(OpenAiResponseTest, TimingsAreTheServersIfTheyAreRequested) {
  std::vector<ResponseDelta> deltas = Deltas();
  deltas[0].times = {.prompt_s = 0.25, .tokens_s = 0};
  deltas[0].cached_tokens = 1;
  deltas[1].times = {.prompt_s = 0.25, .tokens_s = 0.5};
  const Json whole = Json::parse(R"({"cache_n":1,"prompt_n":1,"prompt_ms":250.0,
      "prompt_per_token_ms":250.0,"prompt_per_second":4.0,"predicted_n":2,"predicted_ms":500.0,
      "predicted_per_token_ms":500.0,"predicted_per_second":2.0})");
  EXPECT_FALSE(Json::parse(Run(deltas)).contains("timings"));
  request_.timings = true;
  EXPECT_EQ(Json::parse(Run(deltas))["timings"], whole);
  request_.stream = request_.include_usage = true;
  const std::vector<Json> events = Stream(deltas);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["timings"]["cache_n"], 1);
  EXPECT_EQ(events[0]["timings"]["predicted_n"], 1);
  EXPECT_EQ(events[0]["timings"]["predicted_per_second"], 0) << "no token after the first";
  EXPECT_EQ(events[1]["timings"], whole);
  EXPECT_EQ(events[2]["timings"], whole);
}

TEST_F(OpenAiResponseTest, StreamedEchoBeginsWithThePrompt) {
  request_.stream = true;
  request_.echo = true;
  request_.logprobs = true;
  request_.return_token_ids = true;
  request_.generate.sampling.num_logprobs = 0;
  const std::vector<Json> events = Stream(Deltas());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["choices"][0]["text"], "ab");
  EXPECT_EQ(events[0]["choices"][0]["prompt_token_ids"], Json::parse("[10,11]"));
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["tokens"], Json::parse(R"(["<10>","b"])"));
  EXPECT_EQ(events[1]["choices"][0]["token_ids"], Json::parse("[1]"));
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["text_offset"], Json::parse("[0,0]"))
      << "<10> was added to the prompt: the text does not show it";
  EXPECT_EQ(events[2]["choices"][0]["logprobs"]["text_offset"][0], 3);
}

// The prompt " ab" is "<10>", " a", "b", of which the second opens the text; "<10>" may be part of
// what was sent.
TEST_F(OpenAiResponseTest, OffsetsAreIndicesInTheEchoedText) {
  bytes_[13] = " a";
  request_.echo = true;
  request_.logprobs = true;
  request_.generate.sampling.num_logprobs = 1;
  const auto scores = std::make_shared<const std::vector<SampleResult>>(
      std::vector{Token(13, -1, {{13, -1}}), Token(11, -1, {{13, -1}})});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ab", "[0,0,1,2,3]"}, {"<10>ab", "[0,4,5,6,7]"}, {"<10>AAB", "[0,4,5,7,8]"}};
  for (const auto& [text, offsets] : cases) {
    PromptInfo prompt{{10, 13, 11}, text};
    prompt.opening_tokens = 2;
    std::vector<ResponseEvent> events = {ResponseStarted{{prompt}},
                                         ResponsePromptLogprobs{0, scores}};
    for (ResponseDelta& delta : Deltas()) events.push_back(std::move(delta));
    events.push_back(ResponseDone{{}, {3, 2, 1}});
    const Json choice = Json::parse(Written(events))["choices"][0];
    EXPECT_EQ(choice["text"], text + "xyz");
    EXPECT_EQ(choice["logprobs"]["tokens"], Json::parse(R"(["<10>","a","b","x","yz"])"));
    EXPECT_EQ(choice["logprobs"]["top_logprobs"][1], Json::parse(R"({"a":-1.0})"));
    EXPECT_EQ(choice["logprobs"]["top_logprobs"][2], Json::parse(R"({" a":-1.0,"b":-1.0})"));
    EXPECT_EQ(choice["logprobs"]["text_offset"], Json::parse(offsets)) << text;
  }
}

TEST_F(OpenAiResponseTest, OpeningTokensHaveTheirContentAsBytes) {
  bytes_[13] = " a";
  request_.logprobs = true;
  request_.generate.sampling.num_logprobs = 1;
  for (const bool stream : {false, true}) {
    request_.chat = request_.stream = stream;
    ResponseDelta first, last;
    first.tokens = {Token(10, -1, {{13, -2}})};
    first.opening_tokens = 1;
    last.text = "a a";
    last.tokens = {Token(13, -1, {{13, -1}}), Token(13, -1, {{13, -1}})};
    last.opening_tokens = 1;
    last.finish = FinishReason::kLength;
    if (!stream) {
      const Json logprobs = Json::parse(Run({first, last}))["choices"][0]["logprobs"];
      EXPECT_EQ(logprobs["tokens"], Json::parse(R"(["<10>","a"," a"])"));
      EXPECT_EQ(logprobs["top_logprobs"][0], Json::parse(R"({"a":-2.0,"<10>":-1.0})"));
      EXPECT_EQ(logprobs["text_offset"], Json::parse("[0,0,1]")) << "<10> is not shown";
      continue;
    }
    const Json content = Stream({first, last})[2]["choices"][0]["logprobs"]["content"];
    EXPECT_EQ(content[0]["token"], "a");
    EXPECT_EQ(content[0]["top_logprobs"][0]["bytes"], Json::parse("[97]"));
    EXPECT_EQ(content[1]["token"], " a");
  }
}

TEST_F(OpenAiResponseTest, StreamSendsPromptScoresInTheFirstChunkOfEachChoice) {
  request_.stream = true;
  request_.prompt_logprobs = 1;
  request_.generate.n = 2;
  for (const bool chat : {false, true}) {
    request_.chat = chat;
    const auto scores = std::make_shared<const std::vector<SampleResult>>(
        std::vector{Token(11, -1.5f, {{11, -1.5f}, {12, -2.0f}})});
    std::vector<ResponseEvent> events = {ResponseStarted{{{{10, 11}, "ab"}}},
                                         ResponsePromptLogprobs{0, scores, 2},
                                         ResponsePromptLogprobs{1, scores, 2}};
    for (const int choice : {0, 1}) {
      events.push_back(Deltas()[1]);
      std::get<ResponseDelta>(events.back()).choice = choice;
    }
    events.push_back(ResponseDone{{}, {2, 2, 0}});
    const std::vector<std::string> data = testing::SseData(Written(events));
    ASSERT_EQ(data.size(), 5u);
    for (const size_t i : {0, 1}) {
      const Json first = Json::parse(data[i])["choices"][0];
      EXPECT_EQ(first["index"], i);
      EXPECT_EQ(first["prompt_logprobs"], Json::parse(R"([null,
          {"11":{"logprob":-1.5,"rank":1,"decoded_token":"b"}}])"));
      EXPECT_FALSE(Json::parse(data[i + 2])["choices"][0].contains("prompt_logprobs"));
    }
  }
}

TEST_F(OpenAiResponseTest, StreamedOneTokenPromptHasNoScore) {
  request_.stream = true;
  request_.prompt_logprobs = 0;
  const std::vector<std::string> data = testing::SseData(
      Written({ResponseStarted{{{{10}, "a"}}}, Deltas()[1], ResponseDone{{}, {1, 1, 0}}}));
  EXPECT_EQ(Json::parse(data[0])["choices"][0]["prompt_logprobs"], Json::parse("[null]"));
}

TEST_F(OpenAiResponseTest, TokensMayBeNamedByTheirIds) {
  request_.logprobs = true;
  request_.tokens_as_ids = true;
  request_.generate.sampling.num_logprobs = 1;
  const Json logprobs = Json::parse(Run(Deltas()))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json::parse(R"(["token_id:1","token_id:3"])"));
  EXPECT_EQ(logprobs["top_logprobs"],
            Json::parse(R"([{"token_id:1":-0.5},{"token_id:4":-0.125,"token_id:3":-0.25}])"));
  EXPECT_EQ(logprobs["text_offset"], Json::parse("[0,1]"));
  request_.chat = true;
  const Json content = Json::parse(Run(Deltas()))["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content[0]["token"], "token_id:1");
  EXPECT_EQ(content[0]["bytes"], Json::parse("[120]")) << "the bytes stay the token's";
  EXPECT_EQ(content[1]["top_logprobs"][0]["token"], "token_id:4");
}

TEST_F(OpenAiResponseTest, NoChunkIsSentWhileTextIsHeldBack) {
  request_.stream = true;
  ResponseDelta held;
  held.tokens = {Token(9, 0)};
  std::vector<ResponseDelta> deltas = Deltas();
  deltas.insert(deltas.begin(), held);
  EXPECT_EQ(Stream(deltas).size(), 2u);
}

TEST_F(OpenAiResponseTest, ErrorInMidStreamIsTheLastEvent) {
  request_.stream = true;
  std::vector<ResponseDelta> deltas = Deltas();
  deltas.pop_back();
  const std::vector<std::string> data = testing::SseData(
      Run(deltas, Status(StatusCode::kInternal, "broken")));
  ASSERT_EQ(data.size(), 2u);
  EXPECT_EQ(
      Json::parse(data[1]),
      Json::parse(
          R"({"error":{"message":"broken","type":"server_error","param":null,"code":null}})"));
}

TEST_F(OpenAiResponseTest, ErrorBeforeTheFirstByteSendsNoEvent) {
  request_.stream = true;
  ResponseEncoder response(Make());
  response.Take(ResponseStarted{{{{10}, "a"}}});
  response.Take(ResponseDone{Status(StatusCode::kResourceExhausted, "full"), {}});
  EXPECT_FALSE(response.answer().started);
  EXPECT_TRUE(response.written());
  EXPECT_EQ(response.answer().status.code(), StatusCode::kResourceExhausted);
}

TEST_F(OpenAiResponseTest, InvalidUtf8IsNeverSent) {
  for (const bool stream : {false, true}) {
    for (const bool chat : {false, true}) {
      request_.stream = stream;
      request_.chat = chat;
      request_.include_usage = stream;
      request_.logprobs = true;
      request_.generate.sampling.num_logprobs = 1;
      std::vector<ResponseDelta> deltas = Deltas();
      deltas[0].text = "\xE2\x82 \xFF";
      bytes_[1] = "\xF0\x9F";
      const std::string out = Run(deltas);
      EXPECT_NO_THROW((void)Json(out).dump()) << "not UTF-8";
    }
  }
}

TEST_F(OpenAiResponseTest, EveryChoiceHasItsIndex) {
  request_.generate.n = 2;
  request_.return_token_ids = true;
  std::vector<ResponseEvent> events = {ResponseStarted{{{{10}, "a"}, {{20, 21}, "b"}}}};
  for (const int choice : {3, 1, 0, 2}) {
    ResponseDelta delta;
    delta.choice = choice;
    delta.text = std::to_string(choice);
    delta.finish = FinishReason::kLength;
    events.push_back(std::move(delta));
  }
  events.push_back(ResponseDone{{}, {3, 0, 0}});
  const Json choices = Json::parse(Written(events))["choices"];
  ASSERT_EQ(choices.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(choices[i]["index"], i);
    EXPECT_EQ(choices[i]["text"], std::to_string(i));
    EXPECT_EQ(choices[i]["prompt_token_ids"].size(), i < 2 ? 1u : 2u);
    EXPECT_EQ(choices[i]["finish_reason"], "length");
  }
}

TEST(OpenAiErrorTest, AllFourKeysAreAlwaysPresent) {
  for (const StatusCode code :
       {StatusCode::kInvalidArgument, StatusCode::kUnauthenticated, StatusCode::kNotFound,
        StatusCode::kResourceExhausted, StatusCode::kUnavailable, StatusCode::kCancelled,
        StatusCode::kDeadlineExceeded, StatusCode::kUnimplemented, StatusCode::kInternal}) {
    const Json error = Json::parse(OpenAiErrorBody(Status(code, "why \xFF", "field")))["error"];
    EXPECT_EQ(error.size(), 4u);
    EXPECT_TRUE(error["message"].is_string());
    EXPECT_TRUE(error["type"].is_string());
    EXPECT_EQ(error["param"], "field");
    EXPECT_TRUE(error["code"].is_string() || error["code"].is_null());
  }
  EXPECT_EQ(
      Json::parse(OpenAiErrorBody(Status(StatusCode::kNotFound, "x", "model")))["error"]["code"],
      "model_not_found");
}

}  // namespace
}  // namespace diffserve
