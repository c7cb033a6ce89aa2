// SPDX-License-Identifier: Apache-2.0
// EventLog: numbers the events of one server-sent stream from 1 and keeps the latest, so that a
// client can resume after its last event. An event's id is "STREAM:NUMBER" in a line before it, as
// the standard says.
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace diffserve {

// A parsed Last-Event-ID.
struct EventId {
  std::string stream;
  uint64_t number = 0;
};
// nullopt: the id is not one of ours.
std::optional<EventId> ParseEventId(std::string_view text);

class EventLog {
 public:
  EventLog(std::string stream_id, size_t max_bytes);

  // Takes the next bytes of the stream, cut anywhere, and appends them to `out` with ids. An event
  // ends with an empty line.
  void Append(std::string_view bytes, std::string* out);

  enum class Found { kKept, kOutgrown, kUnknown };
  // Appends all that followed event `number`, if it is kept (kKept). kOutgrown: those events were
  // dropped. kUnknown: event `number` is not complete yet.
  Found AppendAfter(uint64_t number, std::string* out) const;
  uint64_t last() const { return last_; }  // the number of the last complete event
  size_t held_bytes() const { return kept_bytes_ + open_.size(); }

 private:
  void Put(std::string_view bytes, std::string* out);
  void EndEvent();

  const std::string id_;
  const size_t max_bytes_;
  std::deque<std::string> kept_;  // the events up to last_, each with its id
  size_t kept_bytes_ = 0;
  uint64_t last_ = 0;
  std::string open_;  // the received part of event last_ + 1, with its id
  bool in_event_ = false;
  bool too_long_ = false;  // the incomplete event is not kept
  bool at_line_end_ = false;
};

}  // namespace diffserve
