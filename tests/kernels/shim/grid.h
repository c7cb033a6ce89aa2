// SPDX-License-Identifier: Apache-2.0
// The running grid of fiber_grid.h: one thread block at a time, each of its threads a fiber.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/kernels/shim/fiber_context.h"
#include "tests/kernels/shim/fiber_grid.h"

namespace diffserve::shim {

inline constexpr int kNumBarriers = 16;
inline constexpr char kOpenCounters[] = "a counter is not 0 after the grid";

struct Copy {
  std::byte* destination;
  const void* source;
  size_t bytes;
  uint32_t barrier;  // for a bulk copy
};

struct Fiber {
  FiberContext context;
  std::unique_ptr<std::byte[]> stack;
  void* fake_stack = nullptr;  // AddressSanitizer's
  Index3 index;
  int number = 0;  // in the block
  uint32_t priority = 0;
  bool finished = false;
  bool has_waited = false;  // for the kernel before
  std::vector<Copy> open_group;
  std::deque<std::vector<Copy>> groups;
};

// Lanes of one warp that wait for the rest of their mask.
struct Meeting {
  int warp;
  uint32_t mask;
  const char* operation;
  void* arguments[32];
  uint32_t arrived;
};

// The tasks of one warp, oldest first.
struct WarpTasks {
  struct Entry {
    WarpTask task;
    uint64_t group;
    bool has_run;
  };
  std::deque<Entry> entries;
  uint64_t open_group = 0;
  size_t num_issued = 0;
  bool fenced = false;
};

// The 64-bit barrier word in shared memory.
struct TransactionBarrier {
  int32_t pending_bytes;
  int16_t pending_arrivals;
  uint16_t arrivals_and_phase;  // phase in bit 15
  uint32_t Phase() const { return arrivals_and_phase >> 15; }
};
static_assert(sizeof(TransactionBarrier) == 8);

class Grid {
 public:
  Grid(const GridShape& shape, const GridOptions& options, const std::function<void()>& thread,
       uint32_t seed)
      : shape_(shape), options_(options), thread_(thread), random_(seed) {}
  ~Grid();

  std::string Run();
  // Runs one block up to its wait for the kernel before, or all of it.
  std::string Start(Index3 block);
  std::string Finish();
  std::string Run(Index3 block) {
    RunBlock(block);
    return error_;
  }
  bool HasCounters() const {
    return std::ranges::any_of(counters_, [](const uint32_t* at) { return *at != 0; });
  }
  void WaitForPrevious();
  void LaunchDependents() {
    if (shape_.is_dependent && !current_->has_waited)
      Fail("dependents are launched before the wait for the kernel before");
  }
  // Passed by value and moved from, since nothing on the stack of an abandoned fiber is destroyed.
  void Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    SwitchToScheduler(*current_);
    std::abort();
  }
  void MeetWarp(uint32_t mask, const char* operation, void* argument, WarpOperation apply);
  void MeetBlock(int id, int num_threads);
  void CopyAsync(const Copy& copy);
  void CommitCopies();
  void WaitCopies(size_t groups_in_flight);
  void BulkCopyAsync(const Copy& copy);
  void CheckEarlyBulkCopies();
  void BarrierChange(uint32_t barrier, int arrivals, int64_t bytes);
  void BarrierWait(uint32_t barrier, uint32_t parity);
  std::byte* SharedAt(uint32_t address, size_t bytes, size_t alignment);
  void AnnounceTask(uint64_t signature);
  void IssueTask(WarpTask task);
  void WaitTasks(size_t groups_in_flight);
  uint32_t CountInTurn(uint32_t* counter, uint32_t last) {
    counters_.insert(counter);
    return std::exchange(*counter, *counter >= last ? 0 : *counter + 1);
  }
  WarpTasks& tasks() { return tasks_[static_cast<size_t>(current_->number / 32)]; }

  Fiber& current() { return *current_; }
  std::byte* shared() { return shared_; }
  void RunThread();

 private:
  void RunBlock(Index3 block);
  void BeginBlock(Index3 block);
  void RunFibers();
  void EndBlock();
  size_t PickReady() {
    if (!has_priorities_) return random_() % ready_.size();
    const auto top = std::ranges::max_element(ready_, {}, &Fiber::priority);
    return static_cast<size_t>(top - ready_.begin());
  }
  void PrepareFibers(Index3 block);
  void SetUpShared();
  void CheckRedZones();
  void SwitchTo(Fiber& fiber);
  void SwitchToScheduler(Fiber& fiber);
  void Perform(const Copy& copy);
  void PerformOneBulkCopy();
  void RunTasksUpTo(WarpTasks& tasks, size_t count);
  void RunSomeTask();
  void CheckTasksAreOver();
  bool Coin() { return (random_() & 1) != 0; }
  bool EarlyCopy() {
    return options_.copy_timing == CopyTiming::kEarly ||
           (options_.copy_timing == CopyTiming::kShuffled && Coin());
  }
  void Wake(Fiber& fiber) { ready_.push_back(&fiber); }

  const GridShape shape_;
  const GridOptions options_;
  const bool has_priorities_ = options_.seed > 1 && options_.seed % 2 == 1;
  const std::function<void()>& thread_;
  std::mt19937 random_;
  std::string error_;
  FiberContext scheduler_;
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* current_ = nullptr;
  std::vector<Fiber*> ready_;
  size_t running_ = 0;  // fibers that have not finished
  bool holds_ = false;  // at the wait for the kernel before
  std::vector<Fiber*> held_;
  Index3 block_;
  std::vector<std::byte> storage_;  // of shared memory
  std::vector<Meeting> meetings_;
  std::set<const uint32_t*> counters_;
  std::vector<Fiber*> at_barrier_[kNumBarriers];
  std::vector<std::pair<uint32_t, Fiber*>> transaction_waiters_;
  std::vector<Copy> bulk_copies_;
  // Issued before the wait for the kernel before: sources, and what they were.
  std::vector<std::pair<const std::byte*, std::vector<std::byte>>> early_bulk_copies_;
  std::vector<WarpTasks> tasks_;                   // by warp
  size_t num_tasks_ = 0;                           // of all warps
  std::vector<std::vector<uint64_t>> signatures_;  // of all tasks issued, by warpgroup
  std::byte* shared_ = nullptr;
};

inline Grid* grid = nullptr;  // the running one
inline GridOptions grid_options;

// The blocks of a grid, in order.
std::vector<Index3> BlocksOf(const Index3& count);

}  // namespace diffserve::shim
