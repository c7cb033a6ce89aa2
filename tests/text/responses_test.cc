// SPDX-License-Identifier: Apache-2.0
// Responses driven by hand, and the events of their streams.
#include "engine/text/responses.h"

#include <gtest/gtest.h>

#include "tests/testing/text/response_client.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

class ResponsesTest : public ::testing::Test {
 protected:
  std::vector<int32_t> Encode(const std::string& text) const {
    return tokenizer_->Encode(text, false).value();
  }
  // The id of its first continuation; the others follow.
  RequestId Start(Client& client, TokenizedRequest tokenized) {
    responses_.Open({.id = ++last_response_, .request_id = "", .stream = client.stream});
    const RequestId first = last_request_ + 1;
    responses_.Submit(last_response_, std::move(tokenized));
    return first;
  }
  // One event per token; `finish` with the last.
  void PostText(RequestId id, const std::string& text, FinishReason finish = FinishReason::kNone) {
    const std::vector<int32_t> ids = Encode(text);
    for (size_t i = 0; i < ids.size(); ++i)
      responses_.Take(Event(id, {ids[i]}, i + 1 == ids.size() ? finish : FinishReason::kNone));
  }

  static constexpr int32_t kEos = 1;
  std::unique_ptr<Tokenizer> tokenizer_ = LoadTokenizerFixture("byte_bpe");
  ResponseId last_response_ = 0;
  RequestId last_request_ = 0;
  size_t refused_from_ = ~size_t{0};
  std::vector<RequestId> cancelled_;
  std::vector<FinishReason> cancelled_as_;  // parallel to cancelled_
  std::vector<ResponseId> ended_;
  Responses responses_{
      *tokenizer_,
      {.submit =
           [this](const Request& request) {
             last_request_ = request.id;
             if (request.id < refused_from_) return Status();
             return Status(StatusCode::kResourceExhausted, "the engine is full");
           },
       .cancel =
           [this](RequestId id, FinishReason as) {
             cancelled_.push_back(id);
             cancelled_as_.push_back(as);
           },
       .ended = [this](const OpenedResponse& opened) { ended_.push_back(opened.id); }}};
};

TEST_F(ResponsesTest, StreamsTheTextOfEachChoiceAndEndsOnce) {
  Client client;
  Start(client, Ask({5, 7}, 2));
  const std::vector<std::string> texts = {"Zürich 😀", "日本語", "one", "two words"};
  std::vector<std::vector<int32_t>> ids;
  size_t count = 0;
  for (const std::string& text : texts) ids.push_back(Encode(text)), count += ids.back().size();
  for (size_t i = 0; i < 30; ++i) {
    for (size_t c = 0; c < 4; ++c) {
      if (i >= ids[c].size()) continue;
      TokenEvent event = Event(
          1 + c, {ids[c][i]}, i + 1 == ids[c].size() ? FinishReason::kLength : FinishReason::kNone);
      event.cached_tokens = i == 0 ? static_cast<int>(c) + 1 : 0;
      event.prediction = {.accepted = static_cast<int64_t>(i), .rejected = 2};
      responses_.Take(event);
    }
  }
  client.Read();
  for (int c = 0; c < 4; ++c) {
    EXPECT_EQ(client.text[c], texts[static_cast<size_t>(c)]);
    EXPECT_EQ(client.last[c].finish, FinishReason::kLength);
    EXPECT_EQ(client.tokens[c].size(), ids[static_cast<size_t>(c)].size());
  }
  EXPECT_EQ(client.cached_tokens, 1 + 3) << "the first choice of each prompt says it once";
  EXPECT_TRUE(client.done[0].status.ok());
  EXPECT_EQ(client.done[0].usage.prompt_tokens, 12);
  EXPECT_EQ(client.done[0].usage.cached_tokens, 1 + 3);
  EXPECT_EQ(client.done[0].usage.completion_tokens, static_cast<int64_t>(count));
  EXPECT_EQ(client.done[0].usage.prediction.accepted, static_cast<int64_t>(count) - 4);
  EXPECT_EQ(client.done[0].usage.prediction.rejected, 4 * 2);
  EXPECT_TRUE(cancelled_.empty());
}

TEST_F(ResponsesTest, StopStringTruncatesCancelsAndSwallowsWhatFollows) {
  Client client;
  TokenizedRequest spec = Ask({10}, 2);
  spec.stop = {"never", "dog. The"};
  Start(client, spec);
  const std::string text = "The lazy dog. The dog sleeps";
  PostText(1, text, FinishReason::kLength);
  PostText(2, "fine", FinishReason::kLength);
  client.Read();
  EXPECT_EQ(client.text[0], "The lazy ");
  EXPECT_EQ(client.last[0].finish, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(client.last[0].stop_reason), "dog. The");
  EXPECT_EQ(client.text[1], "fine");
  EXPECT_EQ(cancelled_, std::vector<RequestId>{1});
  EXPECT_EQ(cancelled_as_, std::vector<FinishReason>{FinishReason::kStop});
  // Usage: up to and including the token that completed the match.
  std::string seen;
  int64_t needed = 0;
  for (const int32_t id : Encode(text)) {
    if (seen.find("dog. The") != std::string::npos) break;
    seen += tokenizer_->TokenBytes(id);
    ++needed;
  }
  EXPECT_EQ(client.done[0].usage.completion_tokens,
            needed + static_cast<int64_t>(Encode("fine").size()));
  EXPECT_EQ(client.tokens[0].size(), static_cast<size_t>(needed));
}

TEST_F(ResponsesTest, StopStringIsIncludedOnRequest) {
  Client client;
  TokenizedRequest spec = Ask({10}, 1);
  spec.stop = {"lazy"};
  spec.include_stop_in_output = true;
  Start(client, spec);
  PostText(1, "The lazy dog.");
  client.Read();
  EXPECT_EQ(client.text[0], "The lazy");
}

TEST_F(ResponsesTest, StopStringInTheLastTokenIsNotCancelledAgain) {
  Client client;
  TokenizedRequest spec = Ask({10}, 1);
  spec.stop = {"dog"};
  Start(client, spec);
  responses_.Take(Event(1, Encode("the dog"), FinishReason::kLength));
  client.Read();
  EXPECT_EQ(client.text[0], "the ");
  EXPECT_EQ(client.last[0].finish, FinishReason::kStop);
  EXPECT_TRUE(cancelled_.empty());
}

TEST_F(ResponsesTest, StopStringsApplyOnlyAfterMinTokens) {
  Client client;
  TokenizedRequest spec = Ask({10}, 1);
  spec.stop = {"3"};
  for (Request& request : spec.continuations) request.sampling.min_tokens = 4;
  Start(client, spec);
  for (const char* digit : {"1", "3", "1", "3", "1", "3", "1"})
    responses_.Take(Event(1, Encode(digit)));
  client.Read();
  EXPECT_EQ(client.text[0], "13131");
  EXPECT_EQ(client.done[0].usage.completion_tokens, 6);
}

TEST_F(ResponsesTest, TextHeldForAStopStringIsSentWithTheFinish) {
  Client client;
  TokenizedRequest spec = Ask({10}, 1);
  spec.stop = {"lazy cat"};
  Start(client, spec);
  PostText(1, "The lazy", FinishReason::kLength);
  client.Read();
  EXPECT_EQ(client.text[0], "The lazy");
}

TEST_F(ResponsesTest, EndTokenIsCountedAndNotShown) {
  for (const bool skip_special : {true, false}) {
    for (const bool include_stop : {true, false}) {
      Client client;
      TokenizedRequest spec = Ask({10}, 2);
      spec.skip_special_tokens = skip_special;
      spec.include_stop_in_output = include_stop;
      const RequestId first = Start(client, spec);
      const int32_t stop_id = Encode("x")[0];
      TokenEvent event = Event(first, {Encode("a")[0], stop_id}, FinishReason::kStop);
      event.stop_token = stop_id;
      responses_.Take(event);
      responses_.Take(Event(first + 1, {Encode("b")[0], kEos}, FinishReason::kStop));
      client.Read();
      EXPECT_EQ(client.text[0], include_stop ? "ax" : "a");
      EXPECT_EQ(client.text[1], skip_special ? "b" : "b</s>");
      EXPECT_EQ(std::get<int32_t>(client.last[0].stop_reason), stop_id);
      EXPECT_EQ(client.last[1].stop_reason.index(), 0u);
      EXPECT_EQ(client.done[0].usage.completion_tokens, 4);
    }
  }
}

TEST_F(ResponsesTest, IncompleteCharacterAtTheEndIsReplaced) {
  Client client;
  Start(client, Ask({10}, 1));
  const auto ids = Encode("aन");
  responses_.Take(Event(1, {ids[0], ids[1]}, FinishReason::kLength));
  client.Read();
  EXPECT_EQ(client.text[0], "a�");
}

TEST_F(ResponsesTest, LogprobsCarryTheAlternatives) {
  Client client;
  TokenizedRequest spec = Ask({10}, 1);
  for (Request& request : spec.continuations) {
    request.sampling.num_logprobs = 2;
    request.sampling.prompt_logprobs = 1;
  }
  Start(client, spec);
  const auto ids = Encode("न");
  TokenEvent event = Event(1, {ids[0]}, FinishReason::kLength);
  event.logprobs = {SampleResult{ids[0], true, -0.5f, {{ids[0], -0.5f}, {kEos, -1.5f}}}};
  event.prompt_logprobs = {SampleResult{ids[0], true, -2.0f, {{kEos, -0.25f}}}};
  responses_.Take(event);
  client.Read();
  ASSERT_EQ(client.tokens[0].size(), 1u);
  const SampleResult& token = client.tokens[0][0];
  EXPECT_EQ(token.token, ids[0]);
  EXPECT_EQ(token.logprob, -0.5f);
  ASSERT_EQ(token.top_logprobs.size(), 2u);
  EXPECT_EQ(token.top_logprobs[1].token, kEos);
  ASSERT_EQ(client.prompt_logprobs.size(), 1u);
  ASSERT_EQ(client.prompt_logprobs[0].tokens->size(), 1u);
  EXPECT_EQ(client.prompt_logprobs[0].tokens->at(0).logprob, -2.0f);
  EXPECT_EQ(client.prompt_logprobs[0].tokens->at(0).top_logprobs[0].logprob, -0.25f);
}

TEST_F(ResponsesTest, PromptScoresAreHeldOnceAndPrecedeItsChoices) {
  Client client;
  TokenizedRequest spec = Ask({10, 10}, 3);
  for (Request& request : spec.continuations) request.sampling.prompt_logprobs = 0;
  Start(client, spec);
  const auto ids = Encode("न");
  const auto score = [&](RequestId id) {
    TokenEvent event = Event(id, {ids[0]}, FinishReason::kLength);
    event.prompt_logprobs = {SampleResult{3, true, -2.0f, {}}};
    return event;
  };
  responses_.Take(Event(6, {ids[0]}, FinishReason::kLength));
  responses_.Take(Event(2, {ids[0]}, FinishReason::kLength));
  responses_.Take(Event(2 + 1, {ids[0]}));
  client.Read();
  EXPECT_TRUE(client.tokens.empty());
  responses_.Take(score(1));
  client.Read();
  ASSERT_EQ(client.prompt_logprobs.size(), 3u);
  for (const ResponsePromptLogprobs& scores : client.prompt_logprobs)
    EXPECT_EQ(scores.tokens, client.prompt_logprobs[0].tokens);
  EXPECT_EQ(client.tokens.size(), 3u) << "of the first prompt alone";
  responses_.Take(score(4));
  responses_.Take(Event(3, {ids[0]}, FinishReason::kLength));
  responses_.Take(Event(5, {ids[0]}, FinishReason::kLength));
  client.Read();
  EXPECT_EQ(client.tokens.size(), 6u);
  EXPECT_EQ(client.tokens[2].size(), 2u);
  ASSERT_EQ(client.done.size(), 1u);
  EXPECT_EQ(client.done[0].usage.completion_tokens, 7);
  EXPECT_TRUE(cancelled_.empty());
}

TEST_F(ResponsesTest, OneTokenPromptHasEmptyScoresOncePerChoice) {
  for (const FinishReason finish : {FinishReason::kNone, FinishReason::kLength}) {
    Client client;
    TokenizedRequest spec = Ask({1}, 2);
    for (Request& request : spec.continuations) request.sampling.prompt_logprobs = 0;
    const RequestId first = Start(client, spec);
    responses_.Take(Event(first, {Encode("a")[0]}, finish));
    responses_.Take(Event(first + 1, {Encode("b")[0]}, FinishReason::kLength));
    if (finish == FinishReason::kNone) PostText(first, "c", FinishReason::kLength);
    client.Read();
    ASSERT_EQ(client.prompt_logprobs.size(), 2u);
    for (const ResponsePromptLogprobs& scores : client.prompt_logprobs)
      EXPECT_TRUE(scores.tokens->empty());
    EXPECT_EQ(client.done.size(), 1u);
  }
}

TEST_F(ResponsesTest, ChoiceThatIsCancelledBeforeItsPromptIsScoredHasNoScores) {
  Client client;
  TokenizedRequest spec = Ask({10}, 1);
  spec.continuations[0].sampling.prompt_logprobs = 0;
  responses_.Take(Event(Start(client, spec), {}, FinishReason::kCancelled));
  client.Read();
  EXPECT_TRUE(client.prompt_logprobs.empty());
}

TEST_F(ResponsesTest, ChoiceThatFailsDoesNotWaitForScores) {
  Client client;
  TokenizedRequest spec = Ask({10}, 2);
  for (Request& request : spec.continuations) request.sampling.prompt_logprobs = 0;
  Start(client, spec);
  responses_.Take(Event(2, {}, FinishReason::kError));
  client.Read();
  ASSERT_EQ(client.done.size(), 1u);
  EXPECT_EQ(client.done[0].status.code(), StatusCode::kInternal);
  EXPECT_EQ(cancelled_, std::vector<RequestId>{1});
}

TEST_F(ResponsesTest, ScoredPromptWithoutOutputEndsWithLength) {
  Client client;
  Start(client, Ask({10}, 1));
  TokenEvent event = Event(1, {}, FinishReason::kLength);
  event.prompt_logprobs = {SampleResult{3, true, -1, {}}};
  responses_.Take(event);
  client.Read();
  EXPECT_EQ(client.last[0].finish, FinishReason::kLength);
  EXPECT_EQ(client.done[0].usage.completion_tokens, 0);
}

TEST_F(ResponsesTest, ErrorOfOneChoiceEndsTheResponseAndCancelsTheOthers) {
  Client client;
  Start(client, Ask({10}, 3));
  PostText(1, "a", FinishReason::kLength);
  TokenEvent event = Event(2, {}, FinishReason::kError);
  event.error = Status(StatusCode::kInternal, "a row held NaN");
  responses_.Take(event);
  PostText(3, "dropped", FinishReason::kLength);
  client.Read();
  EXPECT_EQ(client.done[0].status.message(), "a row held NaN");
  EXPECT_EQ(cancelled_, std::vector<RequestId>{3});
  EXPECT_EQ(client.text[2], "");
}

TEST_F(ResponsesTest, CancelledChoiceEndsTheResponseAsCancelled) {
  Client client;
  Start(client, Ask({10}, 2));
  PostText(1, "done", FinishReason::kLength);
  PostText(2, "half");
  responses_.Take(Event(2, {}, FinishReason::kCancelled));
  client.Read();
  EXPECT_EQ(client.text[1], "half");
  EXPECT_EQ(client.last[1].finish, FinishReason::kCancelled);
  EXPECT_EQ(client.done[0].status.code(), StatusCode::kCancelled);
}

TEST_F(ResponsesTest, EndIsOnceForTheWholeResponse) {
  Client client;
  Start(client, Ask({10}, 3));
  PostText(1, "done", FinishReason::kLength);
  responses_.End(1, Status(StatusCode::kDeadlineExceeded, "late"));
  responses_.End(1, Status(StatusCode::kInternal, "ignored: it has ended"));
  responses_.End(99, Status(StatusCode::kInternal, "unknown"));
  PostText(2, "dropped", FinishReason::kLength);
  client.Read();
  ASSERT_EQ(client.done.size(), 1u);
  EXPECT_EQ(client.done[0].status.message(), "late");
  EXPECT_EQ(cancelled_, (std::vector<RequestId>{2, 3}));
  EXPECT_EQ(ended_, std::vector<ResponseId>{1});
}

TEST_F(ResponsesTest, EngineRefusalEndsTheResponseAndItsOtherSequences) {
  Client client;
  refused_from_ = 3;
  Start(client, Ask({10}, 4));
  client.Read();
  EXPECT_EQ(client.done[0].status.message(), "the engine is full");
  EXPECT_EQ(last_request_, 3u) << "nothing is submitted after a refusal";
  EXPECT_EQ(cancelled_, (std::vector<RequestId>{1, 2}));
}

TEST_F(ResponsesTest, ResponseThatEndedBeforeItsTextWorkIsNeverSubmitted) {
  Client client;
  responses_.Open({.id = 7, .request_id = "", .stream = client.stream});
  responses_.End(7, Status(StatusCode::kCancelled, "early"));
  responses_.Submit(7, Ask({10}, 2));
  client.Read();
  EXPECT_EQ(client.started, 0);
  EXPECT_EQ(client.done[0].status.code(), StatusCode::kCancelled);
  EXPECT_EQ(last_request_, 0u);
}

TEST_F(ResponsesTest, DeadlinesEndInTheirOrder) {
  Client clients[3];
  const auto at = [](int second) { return TimePoint(std::chrono::seconds(second)); };
  EXPECT_EQ(responses_.next_deadline(), TimePoint::max());
  responses_.Open({.id = 1, .request_id = "", .stream = clients[0].stream, .deadline = at(20)});
  responses_.Open({.id = 2, .request_id = "", .stream = clients[1].stream, .deadline = at(10)});
  responses_.Open({.id = 3, .request_id = "", .stream = clients[2].stream});
  EXPECT_EQ(responses_.next_deadline(), at(10));
  responses_.EndOverdue(at(9));
  EXPECT_TRUE(ended_.empty());
  responses_.EndOverdue(at(10));
  EXPECT_EQ(ended_, std::vector<ResponseId>{2});
  EXPECT_EQ(responses_.next_deadline(), at(20));
  responses_.End(1, Status());
  EXPECT_EQ(responses_.next_deadline(), TimePoint::max()) << "an ended response has none";
  clients[1].Read();
  EXPECT_EQ(clients[1].done[0].status.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(ResponsesTest, ReaderThatIsTooSlowIsCancelled) {
  Client client(4096);
  Start(client, Ask({10}, 2));
  for (int i = 0; i < 200; ++i) responses_.Take(Event(1, Encode("dog")));
  EXPECT_EQ(cancelled_, (std::vector<RequestId>{1, 2}));
  client.Read();
  EXPECT_EQ(client.done[0].status.code(), StatusCode::kResourceExhausted);
}

TEST_F(ResponsesTest, ClosedStreamIsCancelledAtItsNextToken) {
  Client client;
  Start(client, Ask({10}, 1));
  client.stream->Close();
  PostText(1, "dog");
  EXPECT_EQ(cancelled_, std::vector<RequestId>{1});
}

}  // namespace
}  // namespace diffserve
