// SPDX-License-Identifier: Apache-2.0
// SimulatedReaders: the simulation's part after the engine loop, with the server's own queues.
// Events go into an outbox that is emptied late, and from it to their request's stream. Some
// clients read at once, some slowly, some never, and some leave. The checks of the streams:
//
//  - what a client reads are its request's tokens in order, then one end, then nothing
//  - no stream holds more than its limit, and only a client that is too slow is cut
//  - a client that is cut or leaves has its request cancelled, the others get all that was posted
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/bounded_queue.h"
#include "engine/response_stream.h"
#include "tests/testing/simulated_requests.h"

namespace diffserve::testing {

class SimulatedReaders {
 public:
  struct Counts {
    uint64_t waits = 0;       // the outbox was full
    uint64_t overflowed = 0;  // clients that were too slow
    uint64_t left = 0;        // clients that left
    uint64_t late = 0;        // slow clients that had something to read after the last event
  };
  using Cancel = std::function<void(RequestId)>;

  SimulatedReaders(uint64_t seed, Cancel cancel)
      : dice_{std::mt19937_64(seed * 7919 + 1)},
        cancel_(std::move(cancel)),
        outbox_(static_cast<size_t>(dice_.Pick(1, 24))),
        percent_late_(dice_.Chance(50) ? dice_.Pick(0, 95) : 0) {}

  // Adds an accepted request; the client's behaviour depends only on the id.
  void Open(RequestId id) {
    Dice dice{std::mt19937_64(id * 104729)};
    const int kind = dice.Pick(1, 100);
    Reader& reader = readers_.try_emplace(id, LimitOf(dice)).first->second;
    if (kind > 90) reader.pace = kNever;
    if (kind > 60 && kind <= 90) reader.pace = dice.Pick(2, 12);
    if (kind <= 5) reader.leaves_after = dice.Pick(0, 8);
  }

  // The engine's side: takes an event of a live request. If the outbox is full, the engine waits
  // until the output thread has taken one message.
  void Post(TokenEvent event) {
    std::vector<int32_t>& posted = readers_.at(event.request).posted;
    posted.insert(posted.end(), event.tokens.begin(), event.tokens.end());
    while (!outbox_.TryPush(std::move(event))) {
      ++counts_.waits;
      Deliver();
    }
  }

  // Call after a turn of the engine: the output thread takes all messages or falls behind, and
  // clients read.
  void Turn() {
    ++turn_;
    const bool is_late = dice_.Chance(percent_late_);
    for (int left = is_late ? dice_.Pick(0, 2) : -1; left != 0 && outbox_.size() > 0; --left)
      Deliver();
    for (auto& [id, reader] : readers_) {
      if (reader.leaves_after && *reader.leaves_after <= reader.read.size()) Leave(id, reader);
      if (reader.pace == 1) {
        while (Read(reader)) {
        }
      } else if (reader.pace != kNever && turn_ % static_cast<uint64_t>(reader.pace) == 0) {
        Read(reader);
      }
    }
    std::erase_if(readers_, [](const auto& entry) {
      const Reader& reader = entry.second;
      return reader.is_over && (reader.has_end || reader.has_left);
    });
  }

  // Call after the last turn: every client reads what is left.
  void Finish() {
    while (outbox_.size() > 0) Deliver();
    for (auto& [id, reader] : readers_) {
      bool was_late = false;
      while (Read(reader)) was_late = true;
      counts_.late += was_late ? 1 : 0;
      Require(reader.has_end || reader.has_left, "11: every client that stays reads an end");
    }
  }

  const Counts& counts() const { return counts_; }
  const std::string& violation() const { return violation_; }

 private:
  static constexpr int kNever = 0;

  struct Reader {
    explicit Reader(size_t limit_in) : limit(limit_in), stream(limit_in, nullptr) {}

    const size_t limit;
    int pace = 1;                        // turns per read of one event; 1: reads everything each
                                         // turn
    std::optional<size_t> leaves_after;  // tokens
    ResponseStream stream;
    size_t held = 0;  // bytes in the stream, without the end
    std::vector<int32_t> posted, read;
    bool is_over = false;  // the request's last event was taken
    bool is_cut = false, has_left = false, has_end = false;
  };

  static Status TooSlow() { return Status(StatusCode::kCancelled, "read too slowly"); }
  static size_t LimitOf(Dice& dice) {
    return sizeof(ResponseEvent) * static_cast<size_t>(dice.Pick(2, 40));
  }

  void Require(bool condition, const char* what) {
    if (!condition && violation_.empty()) violation_ = what;
  }

  // The output thread takes a message.
  void Deliver() {
    const TokenEvent event = *outbox_.TryPop();
    Reader& reader = readers_.at(event.request);
    if (!reader.is_cut && !reader.has_left) Push(event, reader);
    if (event.finish == FinishReason::kNone) return;
    reader.is_over = true;
    if (reader.is_cut || reader.has_left) return;
    Require(reader.stream.Push(ResponseDone{event.error, {}}), "an end always fits");
  }

  void Push(const TokenEvent& event, Reader& reader) {
    ResponseDelta delta;
    for (const int32_t token : event.tokens) delta.tokens.push_back({.token = token});
    delta.finish = event.finish;
    ResponseEvent pushed(std::move(delta));
    const size_t bytes = HeldBytes(pushed);
    const bool fits = reader.held + bytes <= reader.limit;
    Require(reader.stream.Push(std::move(pushed)) == fits, "a stream takes what fits, and no more");
    if (fits) {
      reader.held += bytes;
      return;
    }
    ++counts_.overflowed;
    reader.is_cut = true;
    Require(reader.stream.Push(ResponseDone{TooSlow(), {}}), "an end always fits");
    cancel_(event.request);
  }

  void Leave(RequestId id, Reader& reader) {
    if (reader.has_left || reader.has_end) return;
    ++counts_.left;
    reader.has_left = true;
    reader.stream.Close();
    cancel_(id);
  }

  // False if there is nothing to read.
  bool Read(Reader& reader) {
    const std::optional<ResponseEvent> event = reader.stream.TryPop();
    if (!event) return false;
    Require(!reader.has_end && !reader.has_left, "11: nothing comes after the end");
    if (const auto* done = std::get_if<ResponseDone>(&*event)) {
      reader.has_end = true;
      Require(reader.is_cut == (done->status.message() == TooSlow().message()),
              "a client that is too slow gets that error");
      Require(reader.is_cut || reader.read == reader.posted,
              "12: a client that reads to the end has all tokens");
      return true;
    }
    reader.held -= HeldBytes(*event);
    for (const SampleResult& token : std::get<ResponseDelta>(*event).tokens)
      reader.read.push_back(token.token);
    const bool is_prefix = reader.read.size() <= reader.posted.size() &&
                           std::equal(reader.read.begin(), reader.read.end(),
                                      reader.posted.begin());
    Require(is_prefix, "12: tokens are read in order");
    return true;
  }

  Dice dice_;
  const Cancel cancel_;
  BoundedQueue<TokenEvent> outbox_;
  const int percent_late_;
  uint64_t turn_ = 0;
  std::map<RequestId, Reader> readers_;
  Counts counts_;
  std::string violation_;
};

}  // namespace diffserve::testing
