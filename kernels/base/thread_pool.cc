// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "kernels/process/check.h"
#include "kernels/process/cpu_quota.h"
#include "kernels/process/thread_registry.h"

namespace diffserve {
namespace {

// The process's CPUs in ascending order, read from the main thread: the caller may itself be
// pinned.
std::vector<int> AffinityCpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<int> cpus;
  if (sched_getaffinity(getpid(), sizeof(mask), &mask) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
    }
  }
  return cpus;
}

// Lets a loop that watches memory run slower.
void PauseSpinning() {
#if defined(__aarch64__)
  asm volatile("isb");
#else
  __builtin_ia32_pause();
#endif
}

void PinTo(pthread_t thread, int cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(cpu, &mask);
  pthread_setaffinity_np(thread, sizeof(mask), &mask);  // failure costs only speed
}

}  // namespace

int AvailableCpus() {
  int cpus = static_cast<int>(AffinityCpus().size());
  if (cpus == 0) cpus = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::ifstream file("/proc/self/cgroup");
  const std::string lines{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const double quota = CgroupCpuQuota(lines, "/sys/fs/cgroup");
  if (quota > 0 && quota < cpus) cpus = static_cast<int>(std::ceil(quota));
  return std::max(1, cpus);
}

struct ThreadPool::Impl {
  int num_threads = 1;
  std::chrono::microseconds spin{0};
  std::vector<std::thread> threads;  // workers 1 .. num_threads - 1
  const std::function<void(int)>* body = nullptr;
  std::vector<Taken> taken;  // per worker
  bool stopping = false;
  // One cache line each: the workers watch `job`, the caller watches `unfinished`.
  alignas(64) std::atomic<uint32_t> job{0};
  alignas(64) std::atomic<int> unfinished{0};

  // Returns when `*value` differs from `old`: spins, then sleeps on the futex.
  template <typename T>
  void WaitWhileEqual(const std::atomic<T>& value, T old) const {
    const auto deadline = std::chrono::steady_clock::now() + spin;
    while (value.load(std::memory_order_acquire) == old) {
      for (int i = 0; i < 64; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        PauseSpinning();
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        value.wait(old, std::memory_order_acquire);
        return;
      }
    }
  }

  void StartJob() {
    job.fetch_add(1, std::memory_order_release);
    job.notify_all();
  }

  // Runs also if a thread could not be started.
  ~Impl() {
    stopping = true;
    StartJob();
    for (std::thread& thread : threads) thread.join();
  }

  void WorkerMain(int worker) {
    const NamedThread named("worker", "its next job");
    uint32_t seen = 0;
    while (true) {
      WaitWhileEqual(job, seen);
      ++seen;
      if (stopping) return;
      {
        const ScopedThreadActivity at("a job");
        (*body)(worker);
      }
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
    }
  }
};

ThreadPool::ThreadPool(Options options) : impl_(std::make_unique<Impl>()) {
  DS_CHECK(options.num_threads >= 0 && options.spin_us >= 0, "negative thread pool option");
  impl_->num_threads = options.num_threads > 0 ? options.num_threads : AvailableCpus();
  impl_->taken = std::vector<Taken>(static_cast<size_t>(impl_->num_threads));
  impl_->spin = std::chrono::microseconds(options.spin_us);
  const std::vector<int> cpus = AffinityCpus();
  const bool pin = options.pin && static_cast<int>(cpus.size()) == impl_->num_threads;
  impl_->threads.reserve(static_cast<size_t>(impl_->num_threads));
  for (int worker = 1; worker < impl_->num_threads; ++worker) {
    impl_->threads.emplace_back([impl = impl_.get(), worker] { impl->WorkerMain(worker); });
    if (pin) PinTo(impl_->threads.back().native_handle(), cpus[static_cast<size_t>(worker)]);
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::num_threads() const { return impl_->num_threads; }

std::span<ThreadPool::Taken> ThreadPool::taken() { return impl_->taken; }

void ThreadPool::Run(const std::function<void(int)>& body) {
  if (impl_->num_threads == 1) {
    body(0);
    return;
  }
  impl_->body = &body;
  impl_->unfinished.store(impl_->num_threads - 1, std::memory_order_relaxed);
  impl_->StartJob();
  body(0);
  for (int left = impl_->unfinished.load(std::memory_order_acquire); left != 0;
       left = impl_->unfinished.load(std::memory_order_acquire)) {
    impl_->WaitWhileEqual(impl_->unfinished, left);
  }
}

}  // namespace diffserve
