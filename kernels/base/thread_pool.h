// SPDX-License-Identifier: Apache-2.0
// A fixed pool of pinned threads for data-parallel kernels. The calling thread is worker 0. Workers
// spin briefly after a job and then sleep on a futex, so an idle server uses no CPU.
//
// Thread safety: one thread at a time may call Run (in a server the engine's).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace diffserve {

// CPUs this process may use: its affinity mask, capped by the cgroup's CPU quota (rounded up). At
// least 1.
int AvailableCpus();

// With fewer elements than this, waking the workers costs more than it saves.
inline constexpr int64_t kElementsWorthWaking = 16384;

class ThreadPool {
 public:
  struct Options {
    int num_threads = 0;  // workers including the caller; 0 = AvailableCpus()
    // Pin worker i > 0 to the i-th CPU of the affinity mask, if every CPU of the mask gets a
    // worker. The caller, worker 0, is not pinned.
    bool pin = true;
    int spin_us = 50;  // how long an idle worker spins before it sleeps
  };
  explicit ThreadPool(Options options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(worker) once on each worker, 0 <= worker < num_threads(), and returns when all have
  // returned.
  void Run(const std::function<void(int worker)>& body);

  // For RunShares: the number of pieces of each worker's share that are taken.
  struct alignas(64) Taken {
    std::atomic<int> pieces{0};
  };
  std::span<Taken> taken();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The half-open share of `count` items that `worker` of `num_workers` takes. Shares differ by at
// most one item.
struct Share {
  int begin;
  int end;
};
constexpr Share ShareOf(int count, int worker, int num_workers) {
  return {static_cast<int>(static_cast<long long>(count) * worker / num_workers),
          static_cast<int>(static_cast<long long>(count) * (worker + 1) / num_workers)};
}

// Calls body(begin, end) for parts of [0, count): on all workers, or once on the caller if the work
// is too small to wake them. Each worker does its share in a few pieces and then takes pieces of
// some others' shares, so that all end together where some cores are slower or busy. A worker's
// share is the same in each call with the same count: its data may be close to it.
template <typename Body>
void RunShares(ThreadPool& pool, int count, bool worth_waking, const Body& body) {
  constexpr int kPieces = 4;  // per share
  constexpr int kOwners = 8;  // whose shares a worker looks at; each look costs some 100 ns
  const int workers = pool.num_threads();
  if (!worth_waking || workers == 1) return body(0, count);
  const int step = std::max(1, workers / kOwners);
  for (ThreadPool::Taken& share : pool.taken()) share.pieces.store(0, std::memory_order_relaxed);
  pool.Run([&](int worker) {
    for (int i = 0; i < workers; i += step) {
      const int owner = (worker + i) % workers;
      std::atomic<int>& pieces = pool.taken()[static_cast<size_t>(owner)].pieces;
      while (pieces.load(std::memory_order_relaxed) < kPieces) {
        const int piece = pieces.fetch_add(1, std::memory_order_relaxed);
        if (piece >= kPieces) break;
        const Share share = ShareOf(count, owner * kPieces + piece, workers * kPieces);
        if (share.begin < share.end) body(share.begin, share.end);
      }
    }
  });
}

}  // namespace diffserve
