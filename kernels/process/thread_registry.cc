// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/thread_registry.h"

#include <pthread.h>
#include <unistd.h>

namespace diffserve {

ThreadEntry thread_entries[kMaxThreads];

namespace {

thread_local ThreadEntry* own_entry = nullptr;

ThreadEntry* TakeEntry(const char* name) {
  for (ThreadEntry& entry : thread_entries) {
    const char* free = nullptr;
    if (entry.name.compare_exchange_strong(free, name, std::memory_order_acq_rel)) return &entry;
  }
  return nullptr;
}

}  // namespace

NamedThread::NamedThread(const char* name, const char* activity) : entry_(TakeEntry(name)) {
  if (gettid() != getpid()) pthread_setname_np(pthread_self(), name);
  own_entry = entry_;
  if (entry_ == nullptr) return;
  entry_->thread.store(gettid(), std::memory_order_relaxed);
  entry_->activity.store(activity, std::memory_order_relaxed);
}

NamedThread::~NamedThread() {
  own_entry = nullptr;
  if (entry_ == nullptr) return;
  entry_->activity.store(nullptr, std::memory_order_relaxed);
  entry_->name.store(nullptr, std::memory_order_release);
}

ScopedThreadActivity::ScopedThreadActivity(const char* where)
    : before_(own_entry == nullptr
                  ? nullptr
                  : own_entry->activity.exchange(where, std::memory_order_relaxed)) {}

ScopedThreadActivity::~ScopedThreadActivity() {
  if (own_entry != nullptr) own_entry->activity.store(before_, std::memory_order_relaxed);
}

}  // namespace diffserve
