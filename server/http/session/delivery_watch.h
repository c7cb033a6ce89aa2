// SPDX-License-Identifier: Apache-2.0
// DeliveryWatch: what a connection's peer has acknowledged of the bytes passed to the system, and
// whether it has stopped taking them. The system's own limit (TCP_USER_TIMEOUT) would end the
// connection without notice to the peer. It reads no clock: its caller says what time it is.
// Thread safety: only on its loop's thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace diffserve {

class DeliveryWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit DeliveryWatch(std::chrono::milliseconds stall_timeout) : stall_timeout_(stall_timeout) {}

  // The peer has the whole time from `now` on.
  void Begin(TimePoint now) { last_delivery_ = now; }
  // Counts bytes that were passed to the system.
  void Add(size_t bytes) { given_bytes_ += bytes; }
  // Whether the checks so far found no acknowledgement within the time limit. `undelivered`:
  // UndeliveredBytes.
  bool IsStalled(size_t undelivered, TimePoint now);

 private:
  const std::chrono::milliseconds stall_timeout_;
  uint64_t given_bytes_ = 0;
  uint64_t delivered_bytes_ = 0;  // acknowledged at the last check
  TimePoint last_delivery_;       // of the last check that found more
};

// Bytes that were written to the socket, and not yet acknowledged by the peer.
size_t UndeliveredBytes(int socket_fd);

}  // namespace diffserve
