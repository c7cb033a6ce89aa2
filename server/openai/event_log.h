// EventLog: the events of one stream of server-sent events, numbered from 1, and the last of them
// kept, so that a client which lost its connection can be given those behind the last one that it
// has. An event's id is "STREAM:NUMBER" in a line before it, as the standard has it.
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace diffserve {

// What a Last-Event-ID says.
struct EventId {
  std::string stream;
  uint64_t number = 0;
};
// nullopt: it is none of ours.
std::optional<EventId> ParseEventId(std::string_view text);

class EventLog {
 public:
  EventLog(std::string stream_id, size_t max_bytes);

  // Takes what comes next of the stream, cut anywhere, and appends it to `out` with the ids. An
  // event ends with an empty line.
  void Append(std::string_view bytes, std::string* out);

  enum class Found { kKept, kOutgrown, kUnknown };
  // Appends all that has come behind event `number`. Nothing unless it is kept; unknown are numbers
  // of events that have not come whole.
  Found AppendAfter(uint64_t number, std::string* out) const;
  uint64_t last() const { return last_; }  // the number of the last whole event
  size_t held_bytes() const { return kept_bytes_ + open_.size(); }

 private:
  void Put(std::string_view bytes, std::string* out);
  void EndEvent();

  const std::string id_;
  const size_t max_bytes_;
  std::deque<std::string> kept_;  // the events up to last_, each with its id
  size_t kept_bytes_ = 0;
  uint64_t last_ = 0;
  std::string open_;  // what has come of event last_ + 1, with its id
  bool in_event_ = false;
  bool too_long_ = false;  // the event that is open is not kept
  bool at_line_end_ = false;
};

}  // namespace diffserve
