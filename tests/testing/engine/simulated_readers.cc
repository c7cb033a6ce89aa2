// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/engine/simulated_readers.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <variant>

namespace diffserve::testing {

SimulatedReaders::SimulatedReaders(uint64_t seed, Cancel cancel)
    : dice_{std::mt19937_64(seed * 7919 + 1)},
      cancel_(std::move(cancel)),
      outbox_(static_cast<size_t>(dice_.Pick(1, 24))),
      percent_late_(dice_.Chance(50) ? dice_.Pick(0, 95) : 0) {}

void SimulatedReaders::Open(RequestId id) {
  Dice dice{std::mt19937_64(id * 104729)};
  const int kind = dice.Pick(1, 100);
  Reader& reader = readers_.try_emplace(id, LimitOf(dice)).first->second;
  if (kind > 90) reader.pace = kNever;
  if (kind > 60 && kind <= 90) reader.pace = dice.Pick(2, 12);
  if (kind <= 5) reader.leaves_after = dice.Pick(0, 8);
}

void SimulatedReaders::Post(TokenEvent event) {
  std::vector<int32_t>& posted = readers_.at(event.request).posted;
  posted.insert(posted.end(), event.tokens.begin(), event.tokens.end());
  while (!outbox_.TryPush(std::move(event))) {
    ++counts_.waits;
    Deliver();
  }
}

void SimulatedReaders::Turn() {
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

void SimulatedReaders::Finish() {
  while (outbox_.size() > 0) Deliver();
  for (auto& [id, reader] : readers_) {
    bool was_late = false;
    while (Read(reader)) was_late = true;
    counts_.late += was_late ? 1 : 0;
    Require(reader.has_end || reader.has_left, "11: every client that stays reads an end");
  }
}

size_t SimulatedReaders::LimitOf(Dice& dice) {
  return sizeof(ResponseEvent) * static_cast<size_t>(dice.Pick(2, 40));
}

void SimulatedReaders::Require(bool condition, const char* what) {
  if (!condition && violation_.empty()) violation_ = what;
}

void SimulatedReaders::Deliver() {
  const TokenEvent event = *outbox_.TryPop();
  Reader& reader = readers_.at(event.request);
  if (!reader.is_cut && !reader.has_left) Push(event, reader);
  if (event.finish == FinishReason::kNone) return;
  reader.is_over = true;
  if (reader.is_cut || reader.has_left) return;
  Require(reader.stream.Push(ResponseDone{event.error, {}}), "an end always fits");
}

void SimulatedReaders::Push(const TokenEvent& event, Reader& reader) {
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

void SimulatedReaders::Leave(RequestId id, Reader& reader) {
  if (reader.has_left || reader.has_end) return;
  ++counts_.left;
  reader.has_left = true;
  reader.stream.Close();
  cancel_(id);
}

bool SimulatedReaders::Read(Reader& reader) {
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
                         std::equal(reader.read.begin(), reader.read.end(), reader.posted.begin());
  Require(is_prefix, "12: tokens are read in order");
  return true;
}

}  // namespace diffserve::testing
