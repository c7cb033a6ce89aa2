// SPDX-License-Identifier: Apache-2.0
// Messages in Anthropic's format, assembled from events, whole and streamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/api/anthropic/encoder.h"
#include "tests/testing/server/encoder_events.h"

namespace diffserve {
namespace {

using testing::Delta;
using testing::EncodedText;
using testing::EventLines;
using testing::EventsOf;
using ::testing::HasSubstr;
using testing::MarkedSplitter;
using Json = nlohmann::json;

std::string Encoded(bool stream, std::vector<ResponseEvent> events, bool omits_thinking = false) {
  return EncodedText(
      [stream, omits_thinking] {
        return std::make_unique<MessagesResponse>(
            stream, MessagesIdentity{"msg_1", "tiny", "toolu_1", "req-1", omits_thinking},
            MarkedSplitter());
      },
      std::move(events));
}

// A prompt of four tokens, of which the prefix cache had one.
std::vector<ResponseEvent> Events(std::vector<ResponseDelta> deltas, Status end = {}) {
  const auto tokens = static_cast<int64_t>(deltas.size());
  return EventsOf({{{{10, 11, 12, 13}, ""}}}, std::move(deltas), {std::move(end), {4, tokens, 1}});
}

TEST(MessagesResponseTest, MessageHasTheObjectsMembers) {
  const Json body = Json::parse(
      Encoded(false, Events({Delta("Hel"), Delta("lo", FinishReason::kStop)})));
  EXPECT_EQ(body, Json::parse(R"({"id":"msg_1","type":"message","role":"assistant","model":"tiny",
      "content":[{"type":"text","text":"Hello"}],"stop_reason":"end_turn","stop_sequence":null,
      "usage":{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":1,
               "output_tokens":2}})"));
}

TEST(MessagesResponseTest, StreamHasAnthropicsEventsInOrder) {
  EXPECT_EQ(
      EventLines(Encoded(true, Events({Delta("Hel"), Delta("lo", FinishReason::kStop)}))),
      (std::vector<std::string>{
          R"(message_start {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"tiny","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}})",
          R"(ping {"type":"ping"})",
          R"(content_block_start {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}})",
          R"(content_block_delta {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}})",
          R"(content_block_delta {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"lo"}})",
          R"(content_block_stop {"type":"content_block_stop","index":0})",
          R"(message_delta {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":1,"output_tokens":2}})",
          R"(message_stop {"type":"message_stop"})",
      }));
}

TEST(MessagesResponseTest, ThinkingTextAndCallsAreSeparateBlocks) {
  const std::vector<ResponseDelta> deltas = {Delta("?hm"),
                                             Delta("?m"),
                                             Delta("Then "),
                                             Delta("@add"),
                                             Delta("={\"a\":"),
                                             Delta("=1}"),
                                             Delta("@now", FinishReason::kStop)};
  const Json body = Json::parse(Encoded(false, Events(deltas)));
  const std::string signature = body["content"][0]["signature"];
  EXPECT_FALSE(signature.empty());
  EXPECT_EQ(body["content"],
            Json::parse(R"([{"type":"thinking","thinking":"hmm","signature":")" + signature + R"("},
      {"type":"text","text":"Then "},
      {"type":"tool_use","id":"toolu_1","name":"add","input":{"a":1}},
      {"type":"tool_use","id":"toolu_1_1","name":"now","input":{}}])"));
  EXPECT_EQ(body["stop_reason"], "tool_use");

  std::vector<std::string> lines = EventLines(Encoded(true, Events(deltas)));
  lines.erase(lines.begin(), lines.begin() + 2);
  lines.resize(lines.size() - 2);
  EXPECT_EQ(
      lines,
      (std::vector<std::string>{
          R"(content_block_start {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}})",
          R"(content_block_delta {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}})",
          R"(content_block_delta {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"m"}})",
          R"(content_block_delta {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":")" +
              signature + R"("}})",
          R"(content_block_stop {"type":"content_block_stop","index":0})",
          R"(content_block_start {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}})",
          R"(content_block_delta {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Then "}})",
          R"(content_block_stop {"type":"content_block_stop","index":1})",
          R"(content_block_start {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"add","input":{}}})",
          R"(content_block_delta {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}})",
          R"(content_block_delta {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"1}"}})",
          R"(content_block_stop {"type":"content_block_stop","index":2})",
          R"(content_block_start {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_1_1","name":"now","input":{}}})",
          R"(content_block_stop {"type":"content_block_stop","index":3})",
      }));
}

// The block that clients send back has no text, and its signature.
TEST(MessagesResponseTest, OmittedThinkingLeavesASignedBlock) {
  const std::vector<ResponseDelta> deltas = {Delta("?hm"), Delta("?m"),
                                             Delta("Then", FinishReason::kStop)};
  const Json body = Json::parse(Encoded(false, Events(deltas), /*omits_thinking=*/true));
  ASSERT_EQ(body["content"].size(), 2u);
  EXPECT_EQ(body["content"][0]["thinking"], "");
  EXPECT_NE(body["content"][0]["signature"], "");

  const std::vector<std::string> lines = EventLines(
      Encoded(true, Events(deltas), /*omits_thinking=*/true));
  EXPECT_THAT(lines[2], HasSubstr(R"("content_block":{"type":"thinking")"));
  EXPECT_THAT(lines[3], HasSubstr(R"("delta":{"type":"signature_delta","signature":")"));
  EXPECT_THAT(lines[4], HasSubstr("content_block_stop"));
}

TEST(MessagesResponseTest, StopReasonSaysWhatEndedTheMessage) {
  const auto ending = [](ResponseDelta delta) {
    const Json body = Json::parse(Encoded(false, Events({std::move(delta)})));
    const Json streamed = Json::parse(body.dump());
    return body["stop_reason"].get<std::string>() + " " + body["stop_sequence"].dump();
  };
  ResponseDelta at_word = Delta("x", FinishReason::kStop);
  at_word.stop_reason = std::string("END");
  ResponseDelta at_id = Delta("x", FinishReason::kStop);
  at_id.stop_reason = 7;
  EXPECT_EQ(ending(at_word), "stop_sequence \"END\"");
  EXPECT_EQ(ending(at_id), "end_turn null");
  EXPECT_EQ(ending(Delta("x", FinishReason::kLength)), "max_tokens null");
}

TEST(MessagesResponseTest, CallCutByMaxTokensIsOmittedFromAWholeMessage) {
  const Json body = Json::parse(Encoded(
      false, Events({Delta("So"), Delta("@add"), Delta("={\"a\":", FinishReason::kLength)})));
  EXPECT_EQ(body["content"], Json::parse(R"([{"type":"text","text":"So"}])"));
  EXPECT_EQ(body["stop_reason"], "max_tokens");
}

TEST(MessagesResponseTest, AnswerWithoutTextHasNoBlocks) {
  const Json body = Json::parse(Encoded(false, Events({Delta("", FinishReason::kStop)})));
  EXPECT_EQ(body["content"], Json::array());
  EXPECT_EQ(EventLines(Encoded(true, Events({Delta("", FinishReason::kStop)}))).size(), 4u);
}

TEST(MessagesResponseTest, ErrorEndsAStartedStreamWithAnErrorEvent) {
  const std::string text = Encoded(
      true, Events({Delta("Hel")}, Status(StatusCode::kUnavailable, "going down")));
  EXPECT_EQ(
      EventLines(text).back(),
      R"(error {"type":"error","error":{"type":"overloaded_error","message":"going down"},"request_id":"req-1"})");
  EXPECT_EQ(Encoded(true, Events({}, Status(StatusCode::kInternal, "x"))), "");
}

TEST(MessagesResponseTest, ErrorsHaveAnthropicsTypes) {
  const auto type = [](StatusCode code) {
    const Json body = Json::parse(MessagesErrorBody(Status(code, "why"), "req-1"));
    return body["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(type(StatusCode::kInvalidArgument), "invalid_request_error");
  EXPECT_EQ(type(StatusCode::kUnauthenticated), "authentication_error");
  EXPECT_EQ(type(StatusCode::kNotFound), "not_found_error");
  EXPECT_EQ(type(StatusCode::kResourceExhausted), "rate_limit_error");
  EXPECT_EQ(type(StatusCode::kUnavailable), "overloaded_error");
  EXPECT_EQ(type(StatusCode::kDeadlineExceeded), "timeout_error");
  EXPECT_EQ(type(StatusCode::kInternal), "api_error");
  EXPECT_EQ(
      MessagesErrorBody(Status(StatusCode::kInternal, "why"), "req-1"),
      R"({"type":"error","error":{"type":"api_error","message":"why"},"request_id":"req-1"})");
}

TEST(MessagesResponseTest, LongTextsAreSentInPieces) {
  const std::string text(300'000, 'x');
  const Json body = Json::parse(Encoded(false, Events({Delta(text, FinishReason::kStop)})));
  EXPECT_EQ(body["content"][0]["text"], text);
}

}  // namespace
}  // namespace diffserve
