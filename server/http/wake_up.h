// SPDX-License-Identifier: Apache-2.0
// WakeUp: the message by which another thread wakes a connection. Its memory is allocated in
// advance, so waking a connection cannot fail: a lost message would leave the client waiting
// forever.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "kernels/base/check.h"

namespace diffserve {

// Memory for one message; free again when the message starts to run.
struct WakePlace {
  std::atomic<bool> taken{false};
  alignas(std::max_align_t) std::byte memory[256];
};

// The allocator that Asio uses for the message.
template <typename T>
struct WakeMemory {
  using value_type = T;
  explicit WakeMemory(std::shared_ptr<WakePlace> place_in) : place(std::move(place_in)) {}
  template <typename Other>
  WakeMemory(const WakeMemory<Other>& other) : place(other.place) {}  // NOLINT: as allocators are

  T* allocate(size_t count) {
    DS_CHECK(count * sizeof(T) <= sizeof(place->memory), "a wake-up fits its place");
    return reinterpret_cast<T*>(place->memory);
  }
  void deallocate(T*, size_t) {}
  bool operator==(const WakeMemory& other) const { return place == other.place; }

  std::shared_ptr<WakePlace> place;
};

// Calls run(session) if the session still exists. REQUIRES: the caller has taken the place.
template <typename Session, typename Run>
struct WakeUp {
  using allocator_type = WakeMemory<void>;
  allocator_type get_allocator() const { return allocator_type(place); }

  void operator()() {
    place->taken.store(false);
    if (const auto self = session.lock()) run(*self);
  }

  std::shared_ptr<WakePlace> place;
  std::weak_ptr<Session> session;
  Run run;
};

}  // namespace diffserve
