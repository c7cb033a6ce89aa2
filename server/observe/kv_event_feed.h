// SPDX-License-Identifier: Apache-2.0
// KvEventFeed: the newest batches of KV events with their numbers, for subscribers inside this
// process (a gRPC stream each). The publisher appends each batch that it sends over ZeroMQ.
//
// All subscribers read the one window of batches, each from its own place, so a slow one costs no
// memory and delays no other. When the window has passed its place, its subscription fails.
// Thread safety: every method may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/contract/kv_event.h"
#include "kernels/base/status.h"

namespace diffserve {

struct NumberedKvEvents {
  uint64_t number = 0;  // of the batch, from 0; those of dropped batches are missing
  double unix_seconds = 0;
  uint64_t first_event_id = 0;  // events count from 1; events[i] has this id plus i
  std::vector<KvEvent> events;
};

struct KvEventFeedOptions {
  int page_size = 0;           // tokens per page
  size_t max_batches = 10000;  // the window
  size_t max_bytes = size_t{64} << 20;
};

class KvEventFeed {
 public:
  explicit KvEventFeed(KvEventFeedOptions options) : options_(options) {}

  int page_size() const { return options_.page_size; }

  // REQUIRES: numbers rise.
  void Append(uint64_t number, double unix_seconds, std::span<const KvEvent> events);
  // Subscriptions fail with kUnavailable, after what they have not read.
  void Close();

  // Returns the subscription's id. `last_number`: of the last batch that the subscriber has
  // applied; it gets all after that. 0: it has none, and gets the whole window if that begins with
  // the first batch, or else what comes from now on. Error: kInvalidArgument if batches after
  // `last_number` have left the window or it has not been sent. `wake` is called, under the feed's
  // lock, when Next may have something; it must not wait.
  Result<int64_t> Subscribe(uint64_t last_number, std::function<void()> wake);
  // The subscriber's next batch; nullptr: none yet. Error: kResourceExhausted if the subscriber has
  // read too slowly, kUnavailable after Close.
  Result<std::shared_ptr<const NumberedKvEvents>> Next(int64_t subscription);
  void Unsubscribe(int64_t subscription);  // one that is over has no effect
  size_t num_subscriptions();

 private:
  struct Subscriber {
    uint64_t place = 0;  // its next batch, counted in batches from the feed's first
    std::function<void()> wake;
  };
  // The numbers from which a subscriber may go on.
  std::string RangeOfWindow() const;

  struct Kept {
    std::shared_ptr<const NumberedKvEvents> batch;
    size_t bytes = 0;
  };

  const KvEventFeedOptions options_;
  std::mutex mutex_;
  std::deque<Kept> window_;
  uint64_t window_place_ = 0;  // of its first batch
  size_t window_bytes_ = 0;
  uint64_t next_event_id_ = 1;
  bool closed_ = false;
  int64_t next_subscription_ = 0;
  std::unordered_map<int64_t, Subscriber> subscribers_;
};

}  // namespace diffserve
