// A fixed pool of pinned threads for data-parallel kernels. The calling thread is worker 0.
// Workers spin briefly after a job and then sleep on a futex, so an idle server uses no CPU.
//
// Thread safety: Run may be called by one thread at a time (in a server the engine's).
#pragma once

#include <functional>
#include <memory>

namespace diffserve {

// CPUs this process may use: its affinity mask, capped by the cgroup's CPU quota (rounded up). At
// least 1.
int AvailableCpus();

class ThreadPool {
 public:
  struct Options {
    int num_threads = 0;  // workers including the caller; 0 = AvailableCpus()
    bool pin = true;  // pin worker i > 0 to the i-th CPU of the affinity mask when every CPU of the
                      // mask gets a worker; the caller, worker 0, is left as it is
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

// The half-open share of `count` items that `worker` of `num_workers` takes; shares differ by at
// most one item.
struct Share {
  int begin;
  int end;
};
constexpr Share ShareOf(int count, int worker, int num_workers) {
  return {static_cast<int>(static_cast<long long>(count) * worker / num_workers),
          static_cast<int>(static_cast<long long>(count) * (worker + 1) / num_workers)};
}

// body(begin, end) for shares of [0, count): on all workers, or for the whole on the caller alone
// where the work is not worth waking them.
template <typename Body>
void RunShares(ThreadPool& pool, int count, bool worth_waking, const Body& body) {
  if (!worth_waking) return body(0, count);
  pool.Run([&](int worker) {
    const Share share = ShareOf(count, worker, pool.num_threads());
    body(share.begin, share.end);
  });
}

}  // namespace diffserve
