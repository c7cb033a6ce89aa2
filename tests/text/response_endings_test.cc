// SPDX-License-Identifier: Apache-2.0
// All endings of Responses, in random order from a seed.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>

#include "engine/text/responses.h"
#include "tests/testing/text/response_client.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

// All endings in random order. Engine events that Responses have not seen yet wait in `events`, as
// in the outbox.
class EndingsTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  struct Known {
    Client client;
    size_t continuations = 0;
    TimePoint deadline = TimePoint::max();
    bool submitted = false, closed = false, ended = false;
  };
  int Pick(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Pick(1, 100) <= percent; }

  // A response that has not ended, or (sometimes) any id.
  ResponseId Any() {
    std::vector<ResponseId> live;
    for (const auto& [id, known] : known_) {
      if (!known.ended) live.push_back(id);
    }
    if (live.empty() || Chance(10)) return static_cast<ResponseId>(Pick(1, 400));
    return live[static_cast<size_t>(Pick(0, static_cast<int>(live.size()) - 1))];
  }

  void Open() {
    const ResponseId id = known_.size() + 1;
    Known& known = known_.try_emplace(id, Known{Client(Chance(20) ? 2000 : 1 << 20)}).first->second;
    if (Chance(40)) known.deadline = now_ + std::chrono::seconds(Pick(1, 100));
    responses_.Open(
        {.id = id, .request_id = "", .stream = known.client.stream, .deadline = known.deadline});
  }

  void Submit() {
    const ResponseId id = Any();
    const auto found = known_.find(id);
    if (found == known_.end() || found->second.submitted) return;
    found->second.submitted = true;
    submitting_ = id;
    TokenizedRequest tokenized = Ask({3}, Pick(1, 3));
    if (Chance(30)) tokenized.stop = {"dog"};
    responses_.Submit(id, std::move(tokenized));
    ExpectEnded({id}, {StatusCode::kUnavailable});
  }

  // The engine computes a step.
  void Step() {
    std::vector<RequestId> done;
    for (const RequestId id : running_) {
      TokenEvent event = Event(id, {dog_[static_cast<size_t>(Pick(0, 2)) % dog_.size()]});
      if (Chance(6)) event.finish = FinishReason::kLength;
      if (Chance(1)) event.finish = FinishReason::kError;
      if (Chance(1)) event.finish = FinishReason::kCancelled;
      if (event.finish != FinishReason::kNone) done.push_back(id);
      events_.push_back(std::move(event));
    }
    for (const RequestId id : done) running_.erase(id);
  }

  void Deliver() {
    if (events_.empty()) return;
    const TokenEvent event = std::move(events_.front());
    events_.pop_front();
    const auto owner = owners_.find(event.request);
    responses_.Take(event);
    if (event.finish == FinishReason::kError) {
      ExpectEnded({owner->second}, {StatusCode::kInternal});
    } else {
      ExpectEnded({owner->second},
                  {StatusCode::kOk, StatusCode::kResourceExhausted, StatusCode::kCancelled});
    }
  }

  void End() {
    const ResponseId id = Any();
    const auto found = known_.find(id);
    const bool lives = found != known_.end() && !found->second.ended;
    constexpr StatusCode kCodes[] = {StatusCode::kCancelled, StatusCode::kInvalidArgument,
                                     StatusCode::kUnavailable};
    const StatusCode code = kCodes[Pick(0, 2)];
    if (found != known_.end() && Chance(30)) {
      found->second.client.stream->Close();
      found->second.closed = true;
    }
    responses_.End(id, Status(code, "ended"));
    EXPECT_EQ(now_ended_.size(), lives ? 1u : 0u);
    ExpectEnded({id}, {code});
  }

  void Wait() {
    now_ += std::chrono::seconds(Pick(1, 10));
    std::set<ResponseId> overdue;
    for (const auto& [id, known] : known_) {
      if (!known.ended && known.deadline <= now_) overdue.insert(id);
    }
    responses_.EndOverdue(now_);
    EXPECT_EQ(std::set<ResponseId>(now_ended_.begin(), now_ended_.end()), overdue);
    ExpectEnded(overdue, {StatusCode::kDeadlineExceeded});
  }

  // Checks that responses that ended since the last call ended as one of these, with these codes.
  void ExpectEnded(const std::set<ResponseId>& ids, const std::set<StatusCode>& codes) {
    for (const ResponseId id : now_ended_) {
      Known& known = known_.at(id);
      EXPECT_TRUE(ids.contains(id)) << "another response ended";
      EXPECT_FALSE(known.ended) << "a response ends once";
      known.ended = true;
      for (const auto& [request, owner] : owners_) {
        EXPECT_FALSE(owner == id && running_.contains(request)) << "nothing runs on";
      }
      known.client.Read();
      EXPECT_EQ(known.client.done.size(), known.closed ? 0u : 1u);
      if (known.closed) continue;
      const StatusCode code = known.client.done[0].status.code();
      EXPECT_TRUE(codes.contains(code));
      ++ended_as_[code];
    }
    now_ended_.clear();
    size_t live = 0;
    TimePoint next = TimePoint::max();
    for (const auto& [id, known] : known_) {
      if (known.ended) continue;
      ++live;
      next = std::min(next, known.deadline);
    }
    EXPECT_EQ(responses_.size(), live);
    EXPECT_EQ(responses_.next_deadline(), next);
  }

  std::mt19937_64 random_{GetParam()};
  TimePoint now_;
  std::unique_ptr<Tokenizer> tokenizer_ = LoadTokenizerFixture("byte_bpe");
  const std::vector<int32_t> dog_ = tokenizer_->Encode("a dog", false).value();
  std::map<ResponseId, Known> known_;
  std::map<RequestId, ResponseId> owners_;
  std::set<RequestId> running_, cancelled_;  // in the engine
  std::deque<TokenEvent> events_;
  std::vector<ResponseId> now_ended_;
  std::map<StatusCode, int> ended_as_;
  ResponseId submitting_ = 0;
  Responses responses_{
      *tokenizer_,
      {.submit =
           [this](const Request& request) {
             if (Chance(4)) return Status(StatusCode::kUnavailable, "refused");
             EXPECT_TRUE(running_.insert(request.id).second);
             owners_[request.id] = submitting_;
             return Status();
           },
       .cancel =
           [this](RequestId id, FinishReason) {
             EXPECT_TRUE(cancelled_.insert(id).second) << "a continuation is cancelled once";
             if (running_.erase(id) > 0) events_.push_back(Event(id, {}, FinishReason::kCancelled));
           },
       .ended = [this](const OpenedResponse& opened) { now_ended_.push_back(opened.id); }}};
};

TEST_P(EndingsTest, EachResponseEndsOnceWithAllItsSequences) {
  for (int step = 0; step < 3000 && !HasFailure(); ++step) {
    const int dice = Pick(1, 100);
    if (dice <= 12 && responses_.size() < 8) Open();
    if (dice > 12 && dice <= 30) Submit();
    if (dice > 30 && dice <= 50) Step();
    for (int i = Pick(1, 12); dice > 50 && dice <= 92 && i > 0; --i) Deliver();
    if (dice > 92 && dice <= 97) End();
    if (dice > 97) Wait();
  }
  std::set<ResponseId> all;
  for (const auto& [id, known] : known_) all.insert(id);
  responses_.EndAll(Status(StatusCode::kUnavailable, "the server has stopped"));
  ExpectEnded(all, {StatusCode::kUnavailable});
  while (!events_.empty()) Deliver();
  EXPECT_EQ(responses_.size(), 0u);
  EXPECT_TRUE(running_.empty());
  for (const StatusCode code :
       {StatusCode::kOk, StatusCode::kCancelled, StatusCode::kInvalidArgument,
        StatusCode::kUnavailable, StatusCode::kInternal, StatusCode::kDeadlineExceeded,
        StatusCode::kResourceExhausted}) {
    EXPECT_GT(ended_as_[code], 0) << "each way to end is met";
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, EndingsTest, ::testing::Range<uint64_t>(0, 60));

}  // namespace
}  // namespace diffserve
