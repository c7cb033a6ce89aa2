// SPDX-License-Identifier: Apache-2.0
// A fixed pool of pinned threads for data-parallel kernels. The calling thread is worker 0. Workers
// spin briefly after a job and then sleep on a futex, so an idle server uses no CPU.
//
// Thread safety: one thread at a time may call Run (in a server the engine's).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

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

// Calls body(begin, end) for shares of [0, count): on all workers, or once on the caller if the
// work is too small to wake them.
template <typename Body>
void RunShares(ThreadPool& pool, int count, bool worth_waking, const Body& body) {
  if (!worth_waking) return body(0, count);
  pool.Run([&](int worker) {
    const Share share = ShareOf(count, worker, pool.num_threads());
    body(share.begin, share.end);
  });
}

}  // namespace diffserve
