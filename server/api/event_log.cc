// SPDX-License-Identifier: Apache-2.0
#include "server/api/event_log.h"

#include <charconv>
#include <utility>

namespace diffserve {
namespace {

constexpr size_t kMaxIdBytes = 64;

}  // namespace

std::optional<EventId> ParseEventId(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (text.size() > kMaxIdBytes || colon == text.npos || colon == 0) return std::nullopt;
  const std::string_view number = text.substr(colon + 1);
  EventId id = {std::string(text.substr(0, colon)), 0};
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(),
                                            id.number);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  return id;
}

EventLog::EventLog(std::string stream_id, size_t max_bytes)
    : id_(std::move(stream_id)), max_bytes_(max_bytes) {}

void EventLog::Append(std::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    if (!in_event_) {
      in_event_ = true;
      at_line_end_ = false;
      Put("id: " + id_ + ":" + std::to_string(last_ + 1) + "\n", out);
    }
    size_t size = 1;
    if (!at_line_end_ || bytes.front() != '\n') {
      const size_t end = bytes.find("\n\n");
      size = end == bytes.npos ? bytes.npos : end + 2;
    }
    const std::string_view piece = bytes.substr(0, size);
    Put(piece, out);
    bytes.remove_prefix(piece.size());
    at_line_end_ = piece.back() == '\n';
    if (size != bytes.npos) EndEvent();
  }
}

void EventLog::Put(std::string_view bytes, std::string* out) {
  out->append(bytes);
  if (too_long_) return;
  too_long_ = open_.size() + bytes.size() > max_bytes_;
  if (too_long_) {
    open_ = {};
    kept_.clear();  // a client with only those would miss this one
    kept_bytes_ = 0;
    return;
  }
  open_.append(bytes);
  while (held_bytes() > max_bytes_) {
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
  }
}

void EventLog::EndEvent() {
  in_event_ = false;
  ++last_;
  if (std::exchange(too_long_, false)) return;
  kept_bytes_ += open_.size();
  kept_.push_back(std::exchange(open_, {}));
}

EventLog::Found EventLog::AppendAfter(uint64_t number, std::string* out) const {
  if (number > last_) return Found::kUnknown;
  const uint64_t missing = last_ - number;
  if (missing > kept_.size() || too_long_) return Found::kOutgrown;
  for (size_t i = kept_.size() - missing; i < kept_.size(); ++i) out->append(kept_[i]);
  out->append(open_);
  return Found::kKept;
}

}  // namespace diffserve
