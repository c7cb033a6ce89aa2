// SPDX-License-Identifier: Apache-2.0
// The threads of the process. Each has a name, which the system shows too, and a word for its
// current activity, so that a watchdog or a crash report can say what each thread waits for.
//
// Thread safety: all functions may be called from any thread; ForEachThread also from a signal
// handler.
#pragma once

#include <sys/types.h>

#include <atomic>

#include "kernels/process/signal_stack.h"

namespace diffserve {

struct ThreadEntry;

// Created first on a thread, which it names for its own lifetime, and whose signal handlers it
// gives a stack. `name`, and the activities below, are literals; a name has at most 15 characters.
// The system keeps showing the main thread under the program's name, by which tools find a process.
class NamedThread {
 public:
  NamedThread(const char* name, const char* activity);
  ~NamedThread();
  NamedThread(const NamedThread&) = delete;
  NamedThread& operator=(const NamedThread&) = delete;

 private:
  const SignalStack signal_stack_;
  ThreadEntry* const entry_;  // nullptr: all entries are taken
};

// Sets the calling thread's activity for its own lifetime. Does nothing on a thread without a name.
class ScopedThreadActivity {
 public:
  explicit ScopedThreadActivity(const char* where);
  ~ScopedThreadActivity();
  ScopedThreadActivity(const ScopedThreadActivity&) = delete;
  ScopedThreadActivity& operator=(const ScopedThreadActivity&) = delete;

 private:
  const char* const before_;
};

struct ThreadEntry {
  std::atomic<const char*> name{nullptr};  // nullptr: the entry is free
  std::atomic<const char*> activity{nullptr};
  std::atomic<pid_t> thread{0};
};
inline constexpr int kMaxThreads = 512;
extern ThreadEntry thread_entries[kMaxThreads];

// Calls visit(name, activity, thread id) for each thread that has a name.
template <typename Visit>
void ForEachThread(const Visit& visit) {
  for (const ThreadEntry& entry : thread_entries) {
    const char* const name = entry.name.load(std::memory_order_acquire);
    const char* const where = entry.activity.load(std::memory_order_relaxed);
    if (name != nullptr && where != nullptr)
      visit(name, where, entry.thread.load(std::memory_order_relaxed));
  }
}

}  // namespace diffserve
