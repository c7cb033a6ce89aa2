// The threads of the process: each has a name, which the system shows too, and a word for where it
// stands, so that a watchdog or a crash can tell what the others wait for.
//
// Thread safety: all functions may be called from any thread; ForEachThread also from a signal's
// handler.
#pragma once

#include <sys/types.h>

#include <atomic>

namespace diffserve {

struct ThreadPlace;

// Made first on a thread, which it names while it lives. `name`, and the words below, are literals;
// a name has at most 15 characters. The system goes on to show the main thread by the program's
// name, which is what finds a process.
class NamedThread {
 public:
  NamedThread(const char* name, const char* stands_at);
  ~NamedThread();
  NamedThread(const NamedThread&) = delete;
  NamedThread& operator=(const NamedThread&) = delete;

 private:
  ThreadPlace* const place_;  // nullptr: there are more threads than places
};

// While it lives, the calling thread stands somewhere else. Nothing on a thread without name.
class StandsAt {
 public:
  explicit StandsAt(const char* where);
  ~StandsAt();
  StandsAt(const StandsAt&) = delete;
  StandsAt& operator=(const StandsAt&) = delete;

 private:
  const char* const before_;
};

struct ThreadPlace {
  std::atomic<const char*> name{nullptr};  // nullptr: the place is free
  std::atomic<const char*> stands_at{nullptr};
  std::atomic<pid_t> thread{0};
};
inline constexpr int kThreadPlaces = 512;
extern ThreadPlace thread_places[kThreadPlaces];

// Calls visit(name, where, thread id) for each thread that has a name.
template <typename Visit>
void ForEachThread(const Visit& visit) {
  for (const ThreadPlace& place : thread_places) {
    const char* const name = place.name.load(std::memory_order_acquire);
    const char* const where = place.stands_at.load(std::memory_order_relaxed);
    if (name != nullptr && where != nullptr)
      visit(name, where, place.thread.load(std::memory_order_relaxed));
  }
}

}  // namespace diffserve
