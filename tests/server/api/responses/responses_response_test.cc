// SPDX-License-Identifier: Apache-2.0
// Responses in the format of /v1/responses, assembled from events, whole and streamed.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/api/responses/encoder.h"
#include "tests/testing/server/encoder_events.h"

namespace diffserve {
namespace {

using testing::Delta;
using testing::EncodedText;
using testing::EventLines;
using testing::EventsOf;
using testing::MarkedSplitter;
using Json = nlohmann::json;

class ResponsesResponseTest : public ::testing::Test {
 protected:
  std::string Encoded(bool stream, const std::vector<ResponseEvent>& events) {
    return EncodedText(
        [this, stream] {
          ResponseObject object = Begun();
          object.logprobs = logprobs_;
          std::optional<TextTokens> tokens;
          if (logprobs_ != nullptr) tokens.emplace(logprobs_->texts, /*skips_special=*/true);
          return std::make_unique<ResponsesResponse>(
              stream, std::move(object), MarkedSplitter(),
              ResponsesResponse::Hooks{[this](auto ended) { finished_ = std::move(ended); },
                                       [this] { ++dropped_; }},
              std::move(tokens));
        },
        events);
  }
  static ResponseObject Begun() {
    ResponseObject object;
    object.id = "resp_1";
    object.model = "tiny";
    object.created_at = 123;
    object.echo = std::make_shared<const std::string>("\"store\":true");
    return object;
  }
  static std::vector<ResponseEvent> Events(std::vector<ResponseDelta> deltas, Status end = {}) {
    const auto tokens = static_cast<int64_t>(deltas.size());
    return EventsOf({{{{10, 11}, ""}}}, std::move(deltas), {std::move(end), {2, tokens, 1}});
  }

  std::shared_ptr<const ResponseObject> finished_;
  std::shared_ptr<const LogprobForm> logprobs_;
  int dropped_ = 0;
};

TEST_F(ResponsesResponseTest, ResponseHasTheObjectsMembers) {
  const Json body = Json::parse(
      Encoded(false, Events({Delta("Hel"), Delta("lo", FinishReason::kStop)})));
  EXPECT_EQ(body, Json::parse(R"({"id":"resp_1","object":"response","created_at":123,
      "status":"completed","model":"tiny","error":null,"incomplete_details":null,
      "output":[{"id":"msg_1_0","status":"completed","type":"message","role":"assistant",
                 "content":[{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}]}],
      "usage":{"input_tokens":2,"input_tokens_details":{"cached_tokens":1,"cache_write_tokens":0},
               "output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":4},
      "store":true})"));
  ASSERT_NE(finished_, nullptr);
  EXPECT_EQ(finished_->state, ResponseState::kCompleted);
  EXPECT_EQ(dropped_, 0);
}

// The token 65 is "A"; 0 has no text.
ResponseDelta TokensDelta(std::string text, const std::vector<int32_t>& ids,
                          FinishReason finish = FinishReason::kNone) {
  ResponseDelta delta = Delta(std::move(text), finish);
  delta.tokens.clear();
  for (const int32_t id : ids)
    delta.tokens.push_back({.token = id, .logprob = -0.5f, .top_logprobs = {{66, -0.25f}}});
  return delta;
}

TEST_F(ResponsesResponseTest, LogprobsAreThoseOfTheTokensInTheText) {
  const auto text = [](int32_t id) {
    return id == 0 ? std::string() : std::string(1, static_cast<char>(id));
  };
  logprobs_ = std::make_shared<const LogprobForm>(
      LogprobForm{{text, text, [](int32_t) { return false; }}, /*num_top=*/1});
  // Reasoning, text that comes later than its first token, an end without text.
  const auto events = Events({TokensDelta("?hm", {'?', 'h', 'm'}), TokensDelta("", {'H'}),
                              TokensDelta("Hi", {'i'}), TokensDelta("!", {'!'}),
                              TokensDelta("", {0}, FinishReason::kStop)});
  const auto entry = [](const std::string& token) {
    return Json{{"token", token},
                {"logprob", -0.5},
                {"bytes", {static_cast<int>(token[0])}},
                {"top_logprobs", {{{"token", "B"}, {"logprob", -0.25}, {"bytes", {66}}}}}};
  };
  const Json all = {entry("H"), entry("i"), entry("!")};
  const Json body = Json::parse(Encoded(false, events));
  EXPECT_EQ(body["output"][1]["content"][0]["logprobs"], all);
  EXPECT_FALSE(body["output"][0]["content"][0].contains("logprobs"));

  Json deltas = Json::array(), wholes = Json::array();
  for (const std::string& line : EventLines(Encoded(true, events))) {
    const Json event = Json::parse(line.substr(line.find(' ') + 1));
    const std::string type = event["type"];
    if (type == "response.output_text.delta") deltas.push_back(event["logprobs"]);
    if (type == "response.output_text.done") wholes.push_back(event["logprobs"]);
    if (type.starts_with("response.content_part.") && event["output_index"] == 1)
      wholes.push_back(event["part"]["logprobs"]);
    if (type == "response.completed")
      wholes.push_back(event["response"]["output"][1]["content"][0]["logprobs"]);
  }
  EXPECT_EQ(wholes, (Json{Json::array(), all, all, all}));
  EXPECT_EQ(deltas, (Json{{entry("H"), entry("i")}, {entry("!")}}));
  EXPECT_GT(finished_->HeldBytes(), Begun().HeldBytes() + 3 * sizeof(SampleResult));
}

TEST_F(ResponsesResponseTest, TokensOfACallAreInNoText) {
  const auto text = [](int32_t id) { return std::string(1, static_cast<char>(id)); };
  logprobs_ = std::make_shared<const LogprobForm>(
      LogprobForm{{text, text, [](int32_t) { return false; }}});
  const Json body = Json::parse(Encoded(
      false, Events({TokensDelta("@add", {'@', 'a', 'd', 'd'}), TokensDelta("={}", {'=', '{', '}'}),
                     TokensDelta("a", {'a'}, FinishReason::kStop)})));
  const Json logprobs = body["output"][1]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 1u);
  EXPECT_EQ(logprobs[0]["token"], "a");
}

TEST_F(ResponsesResponseTest, StreamHasOpenAisEventsInOrder) {
  const std::vector<std::string> lines = EventLines(
      Encoded(true, Events({Delta("Hel"), Delta("lo", FinishReason::kStop)})));
  ASSERT_EQ(lines.size(), 10u);
  const auto response = [](const std::string& status, const std::string& output,
                           const std::string& usage) {
    return R"("response":{"id":"resp_1","object":"response","created_at":123,"status":")" + status +
           R"(","model":"tiny","error":null,"incomplete_details":null,"output":[)" + output +
           R"(],"usage":)" + usage + R"(,"store":true}})";
  };
  const std::string part =
      R"({"type":"output_text","text":"Hello","annotations":[],"logprobs":[]})";
  const std::string item =
      R"({"id":"msg_1_0","status":"completed","type":"message","role":"assistant","content":[)" +
      part + "]}";
  const std::string place = R"("item_id":"msg_1_0","output_index":0,"content_index":0)";
  const std::vector<std::string> expected = {
      R"(response.created {"type":"response.created","sequence_number":0,)" +
          response("in_progress", "", "null"),
      R"(response.in_progress {"type":"response.in_progress","sequence_number":1,)" +
          response("in_progress", "", "null"),
      R"(response.output_item.added {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"msg_1_0","status":"in_progress","type":"message","role":"assistant","content":[]}})",
      R"(response.content_part.added {"type":"response.content_part.added","sequence_number":3,)" +
          place + R"(,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}})",
      R"(response.output_text.delta {"type":"response.output_text.delta","sequence_number":4,)" +
          place + R"(,"logprobs":[],"delta":"Hel"})",
      R"(response.output_text.delta {"type":"response.output_text.delta","sequence_number":5,)" +
          place + R"(,"logprobs":[],"delta":"lo"})",
      R"(response.output_text.done {"type":"response.output_text.done","sequence_number":6,)" +
          place + R"(,"logprobs":[],"text":"Hello"})",
      R"(response.content_part.done {"type":"response.content_part.done","sequence_number":7,)" +
          place + R"(,"part":)" + part + "}",
      R"(response.output_item.done {"type":"response.output_item.done","sequence_number":8,"output_index":0,"item":)" +
          item + "}",
      R"(response.completed {"type":"response.completed","sequence_number":9,)" +
          response(
              "completed", item,
              R"({"input_tokens":2,"input_tokens_details":{"cached_tokens":1,"cache_write_tokens":0},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":4})"),
  };
  EXPECT_EQ(lines, expected);
}

TEST_F(ResponsesResponseTest, ReasoningTextAndCallsAreSeparateItems) {
  const std::vector<ResponseDelta> deltas = {Delta("?hm"),      Delta("?m"),
                                             Delta("So "),      Delta("@add"),
                                             Delta("={\"a\":"), Delta("=1}", FinishReason::kStop)};
  const Json body = Json::parse(Encoded(false, Events(deltas)));
  EXPECT_EQ(body["output"], Json::parse(R"([
      {"id":"rs_1_0","status":"completed","type":"reasoning","summary":[],
       "content":[{"type":"reasoning_text","text":"hmm"}]},
      {"id":"msg_1_1","status":"completed","type":"message","role":"assistant",
       "content":[{"type":"output_text","text":"So ","annotations":[],"logprobs":[]}]},
      {"id":"fc_1_2","status":"completed","type":"function_call","call_id":"call_1_2",
       "name":"add","arguments":"{\"a\":1}"}])"));
  EXPECT_EQ(body["usage"]["output_tokens_details"]["reasoning_tokens"], 2);

  std::vector<std::string> names;
  Json last;
  for (const std::string& line : EventLines(Encoded(true, Events(deltas)))) {
    names.push_back(line.substr(0, line.find(' ')));
    const Json event = Json::parse(line.substr(line.find(' ') + 1));
    EXPECT_EQ(event["type"], names.back());
    EXPECT_EQ(event["sequence_number"], names.size() - 1);
    if (names.back() == "response.function_call_arguments.done") {
      EXPECT_EQ(event, Json::parse(R"({"type":"response.function_call_arguments.done",
          "sequence_number":18,"item_id":"fc_1_2","output_index":2,"name":"add",
          "arguments":"{\"a\":1}"})"));
    }
    last = event;
  }
  EXPECT_EQ(last["response"]["output"], body["output"]);
  EXPECT_EQ(names, (std::vector<std::string>{"response.created",
                                             "response.in_progress",
                                             "response.output_item.added",
                                             "response.content_part.added",
                                             "response.reasoning_text.delta",
                                             "response.reasoning_text.delta",
                                             "response.reasoning_text.done",
                                             "response.content_part.done",
                                             "response.output_item.done",
                                             "response.output_item.added",
                                             "response.content_part.added",
                                             "response.output_text.delta",
                                             "response.output_text.done",
                                             "response.content_part.done",
                                             "response.output_item.done",
                                             "response.output_item.added",
                                             "response.function_call_arguments.delta",
                                             "response.function_call_arguments.delta",
                                             "response.function_call_arguments.done",
                                             "response.output_item.done",
                                             "response.completed"}));
}

TEST_F(ResponsesResponseTest, AnswerCutByMaxOutputTokensIsIncomplete) {
  const std::vector<ResponseEvent> events = Events({Delta("Hel", FinishReason::kLength)});
  const Json body = Json::parse(Encoded(false, events));
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"], Json::parse(R"({"reason":"max_output_tokens"})"));
  EXPECT_EQ(body["output"][0]["status"], "incomplete");
  EXPECT_EQ(EventLines(Encoded(true, events)).back().find("response.incomplete "), 0u);
}

TEST_F(ResponsesResponseTest, AnswerWithoutTextIsAnEmptyMessage) {
  const Json body = Json::parse(Encoded(false, Events({Delta("", FinishReason::kStop)})));
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "");
  EXPECT_EQ(EventLines(Encoded(true, Events({Delta("", FinishReason::kStop)}))).size(), 8u);
}

TEST_F(ResponsesResponseTest, ErrorEndsAStartedStreamAsFailed) {
  const std::string line =
      EventLines(Encoded(true, Events({Delta("a")}, Status(StatusCode::kInternal, "NaN")))).back();
  const Json event = Json::parse(line.substr(line.find(' ') + 1));
  EXPECT_EQ(event["type"], "response.failed");
  EXPECT_EQ(event["response"]["status"], "failed");
  EXPECT_EQ(event["response"]["error"], Json::parse(R"({"code":"server_error","message":"NaN"})"));
  EXPECT_EQ(event["response"]["output"][0]["status"], "incomplete");
  EXPECT_EQ(finished_->state, ResponseState::kFailed);
}

TEST_F(ResponsesResponseTest, TooLongInputStartsAStreamThatFails) {
  const std::vector<ResponseEvent> events = Events(
      {}, Status(StatusCode::kContextExceeded, "too long", "input"));
  const std::vector<std::string> lines = EventLines(Encoded(true, events));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].find("response.created "), 0u);
  EXPECT_EQ(lines[1].find("response.in_progress "), 0u);
  EXPECT_EQ(lines[2],
            R"(error {"type":"error","sequence_number":2,"error":{"message":"too long",)"
            R"("type":"invalid_request_error","param":"input","code":"context_length_exceeded"}})");
  const Json failed = Json::parse(lines[3].substr(lines[3].find(' ') + 1));
  EXPECT_EQ(failed["type"], "response.failed");
  EXPECT_EQ(failed["response"]["error"],
            Json::parse(R"({"code":"context_length_exceeded","message":"too long"})"));
  EXPECT_EQ(finished_->state, ResponseState::kFailed);
  EXPECT_EQ(dropped_, 0);
  EXPECT_EQ(Encoded(false, events), "") << "it is an HTTP status";
  EXPECT_EQ(dropped_, 2) << "once each time that it was encoded";
}

TEST_F(ResponsesResponseTest, ResponseThatEndsBeforeItBeginsIsDropped) {
  EXPECT_EQ(Encoded(true, Events({}, Status(StatusCode::kResourceExhausted, "full"))), "");
  EXPECT_EQ(finished_, nullptr);
  EXPECT_EQ(dropped_, 2) << "once each time that it was encoded";
}

TEST_F(ResponsesResponseTest, AbandonedStreamIsDropped) {
  {
    ResponseEncoder response(std::make_unique<ResponsesResponse>(
        true, Begun(), MarkedSplitter(),
        ResponsesResponse::Hooks{[](auto) { FAIL(); }, [this] { ++dropped_; }}));
    response.Take(Delta("Hel"));
  }
  EXPECT_EQ(dropped_, 1);
}

TEST_F(ResponsesResponseTest, LongTextsAreSentInPieces) {
  const std::string text(100'000, 'x');
  const std::vector<ResponseEvent> events = Events(
      {Delta(text), Delta("@f"), Delta("={}", FinishReason::kStop)});
  EXPECT_EQ(Json::parse(Encoded(false, events))["output"][0]["content"][0]["text"], text);
  const std::string line = EventLines(Encoded(true, events)).back();
  EXPECT_EQ(
      Json::parse(line.substr(line.find(' ') + 1))["response"]["output"][0]["content"][0]["text"],
      text);
}

TEST_F(ResponsesResponseTest, InputItemsAreListedInPages) {
  const ResponseInput input{
      {"a", "b", "c"}, {"{\"id\":\"a\"}", "{\"id\":\"b\"}", "{\"id\":\"c\"}"}, {}};
  EXPECT_EQ(InputItemsBody(input, true, 2, ""),
            R"({"object":"list","data":[{"id":"a"},{"id":"b"}],"first_id":"a","last_id":"b",)"
            R"("has_more":true})");
  EXPECT_EQ(InputItemsBody(input, true, 2, "b"),
            R"({"object":"list","data":[{"id":"c"}],"first_id":"c","last_id":"c",)"
            R"("has_more":false})");
  EXPECT_EQ(Json::parse(InputItemsBody(input, false, 20, ""))["first_id"], "c");
  EXPECT_EQ(Json::parse(InputItemsBody({}, false, 20, ""))["first_id"], nullptr);
}

}  // namespace
}  // namespace diffserve
