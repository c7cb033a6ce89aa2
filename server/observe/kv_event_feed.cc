// SPDX-License-Identifier: Apache-2.0
#include "server/observe/kv_event_feed.h"

#include <algorithm>
#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

size_t BytesOf(const NumberedKvEvents& batch) {
  size_t bytes = sizeof(batch);
  for (const KvEvent& event : batch.events) {
    bytes += sizeof(event) + event.hashes.size() * sizeof(uint64_t) +
             event.tokens.size() * sizeof(int32_t) + event.salt.size();
  }
  return bytes;
}

}  // namespace

void KvEventFeed::Append(uint64_t number, double unix_seconds, std::span<const KvEvent> events) {
  std::lock_guard lock(mutex_);
  DS_CHECK(window_.empty() || number > window_.back().batch->number, "numbers of batches rise");
  auto batch = std::make_shared<const NumberedKvEvents>(
      NumberedKvEvents{number, unix_seconds, next_event_id_, {events.begin(), events.end()}});
  next_event_id_ += events.size();
  const size_t bytes = BytesOf(*batch);
  window_bytes_ += bytes;
  window_.push_back({std::move(batch), bytes});
  // The newest batch stays, however large.
  while (window_.size() > 1 &&
         (window_.size() > options_.max_batches || window_bytes_ > options_.max_bytes)) {
    window_bytes_ -= window_.front().bytes;
    window_.pop_front();
    ++window_place_;
  }
  for (const auto& [id, subscriber] : subscribers_) subscriber.wake();
}

void KvEventFeed::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& [id, subscriber] : subscribers_) subscriber.wake();
}

std::string KvEventFeed::RangeOfWindow() const {
  if (window_.empty()) return "0";
  const std::string last = std::to_string(window_.back().batch->number);
  if (window_place_ == 0) return "0 to " + last;
  return "0, or " + std::to_string(window_.front().batch->number - 1) + " to " + last;
}

Result<int64_t> KvEventFeed::Subscribe(uint64_t last_number, std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  const uint64_t end = window_place_ + window_.size();
  uint64_t place = end;
  if (last_number == 0) {
    if (window_place_ == 0) place = 0;
  } else {
    const auto after = std::ranges::upper_bound(
        window_, last_number, {}, [](const Kept& kept) { return kept.batch->number; });
    const bool is_sent = !window_.empty() && last_number <= window_.back().batch->number;
    const bool is_kept = window_place_ == 0 || after != window_.begin() ||
                         (is_sent && last_number + 1 == window_.front().batch->number);
    if (!is_sent || !is_kept) {
      return NotAllowed("start_sequence_number is " + std::to_string(last_number), RangeOfWindow(),
                        "start_sequence_number");
    }
    place = window_place_ + static_cast<uint64_t>(after - window_.begin());
  }
  subscribers_[next_subscription_] = {place, std::move(wake)};
  return next_subscription_++;
}

Result<std::shared_ptr<const NumberedKvEvents>> KvEventFeed::Next(int64_t subscription) {
  std::lock_guard lock(mutex_);
  const auto found = subscribers_.find(subscription);
  if (found == subscribers_.end()) return std::shared_ptr<const NumberedKvEvents>();
  uint64_t& place = found->second.place;
  if (place < window_place_) {
    return Status(StatusCode::kResourceExhausted,
                  "the subscriber read too slowly: " + std::to_string(window_place_ - place) +
                      " batches that it has not read are no longer kept");
  }
  if (place < window_place_ + window_.size())
    return window_[static_cast<size_t>(place++ - window_place_)].batch;
  if (closed_) return Status(StatusCode::kUnavailable, "the server has stopped");
  return std::shared_ptr<const NumberedKvEvents>();
}

void KvEventFeed::Unsubscribe(int64_t subscription) {
  std::lock_guard lock(mutex_);
  subscribers_.erase(subscription);
}

size_t KvEventFeed::num_subscriptions() {
  std::lock_guard lock(mutex_);
  return subscribers_.size();
}

}  // namespace diffserve
