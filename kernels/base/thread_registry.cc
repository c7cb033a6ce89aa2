#include "kernels/base/thread_registry.h"

#include <pthread.h>
#include <unistd.h>

namespace diffserve {

ThreadPlace thread_places[kThreadPlaces];

namespace {

thread_local ThreadPlace* own_place = nullptr;

ThreadPlace* TakePlace(const char* name) {
  for (ThreadPlace& place : thread_places) {
    const char* free = nullptr;
    if (place.name.compare_exchange_strong(free, name, std::memory_order_acq_rel)) return &place;
  }
  return nullptr;
}

}  // namespace

NamedThread::NamedThread(const char* name, const char* stands_at) : place_(TakePlace(name)) {
  if (gettid() != getpid()) pthread_setname_np(pthread_self(), name);
  own_place = place_;
  if (place_ == nullptr) return;
  place_->thread.store(gettid(), std::memory_order_relaxed);
  place_->stands_at.store(stands_at, std::memory_order_relaxed);
}

NamedThread::~NamedThread() {
  own_place = nullptr;
  if (place_ == nullptr) return;
  place_->stands_at.store(nullptr, std::memory_order_relaxed);
  place_->name.store(nullptr, std::memory_order_release);
}

StandsAt::StandsAt(const char* where)
    : before_(own_place == nullptr
                  ? nullptr
                  : own_place->stands_at.exchange(where, std::memory_order_relaxed)) {}

StandsAt::~StandsAt() {
  if (own_place != nullptr) own_place->stands_at.store(before_, std::memory_order_relaxed);
}

}  // namespace diffserve
