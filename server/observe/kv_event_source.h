// SPDX-License-Identifier: Apache-2.0
// KvEventSource: where a subscriber reaches a KvEventPublisher over ZeroMQ, and how much it may
// miss. A value.
#pragma once

#include <cstddef>
#include <string>

namespace diffserve {

struct KvEventSource {
  std::string endpoint, topic;
  std::string replay_endpoint;    // empty: there is no replay
  size_t max_replay_batches = 0;  // kept for it
  size_t max_queued_batches = 0;  // unsent
  int max_unread_batches = 0;     // per subscriber
};

}  // namespace diffserve
