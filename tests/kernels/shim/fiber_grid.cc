// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/shim/fiber_grid.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/kernels/shim/fiber_context.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace diffserve::shim {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kRedZoneBytes = 1024;
constexpr unsigned char kPoison = 0xff;  // NaN as bf16 and as float
constexpr unsigned char kRedZone = 0xa5;
constexpr int kNumBarriers = 16;

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
  Grid(const GridShape& shape, const GridOptions& options, const std::function<void()>& thread)
      : shape_(shape), options_(options), thread_(thread), random_(options.seed) {}

  std::string Run();
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
  size_t PickReady() {
    if (!has_priorities_) return random_() % ready_.size();
    const auto top = std::ranges::max_element(ready_, {}, &Fiber::priority);
    return static_cast<size_t>(top - ready_.begin());
  }
  void PrepareFibers(Index3 block);
  void SetUpShared(std::vector<std::byte>& storage);
  void CheckRedZones(const std::vector<std::byte>& storage);
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
  std::vector<Meeting> meetings_;
  std::set<const uint32_t*> counters_;
  std::vector<Fiber*> at_barrier_[kNumBarriers];
  std::vector<std::pair<uint32_t, Fiber*>> transaction_waiters_;
  std::vector<Copy> bulk_copies_;
  std::vector<WarpTasks> tasks_;                   // by warp
  size_t num_tasks_ = 0;                           // of all warps
  std::vector<std::vector<uint64_t>> signatures_;  // of all tasks issued, by warpgroup
  std::byte* shared_ = nullptr;
};

Grid* grid = nullptr;  // the running one
GridOptions grid_options;

// A fiber's entry has no argument and finds its grid here.
void FiberEntry() { grid->RunThread(); }

void Grid::RunThread() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
  thread_();
  bool in_flight = !current_->open_group.empty();
  for (const std::vector<Copy>& group : current_->groups) in_flight |= !group.empty();
  if (in_flight) Fail("a thread ends with copies in flight");
  current_->finished = true;
  SwitchToScheduler(*current_);
}

void Grid::SwitchTo(Fiber& fiber) {
  current_ = &fiber;
  threadIdx = fiber.index;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack_, fiber.stack.get(), kStackBytes);
#endif
  DiffserveShimSwitch(&scheduler_, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
}

void Grid::SwitchToScheduler(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fiber.finished ? nullptr : &fiber.fake_stack, scheduler_stack_,
                                 scheduler_stack_bytes_);
#endif
  DiffserveShimSwitch(&fiber.context, &scheduler_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

void Grid::SetUpShared(std::vector<std::byte>& storage) {
  storage.assign(shape_.shared_bytes + 3 * kRedZoneBytes, std::byte{kRedZone});
  const uintptr_t begin = reinterpret_cast<uintptr_t>(storage.data()) + kRedZoneBytes;
  shared_ = reinterpret_cast<std::byte*>((begin + kRedZoneBytes - 1) / kRedZoneBytes *
                                         kRedZoneBytes);
  std::memset(shared_, kPoison, shape_.shared_bytes);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(storage.data(), static_cast<size_t>(shared_ - storage.data()));
  __asan_poison_memory_region(shared_ + shape_.shared_bytes, kRedZoneBytes);
#endif
}

void Grid::CheckRedZones(const std::vector<std::byte>& storage) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(storage.data(), storage.size());
#endif
  const size_t begin = static_cast<size_t>(shared_ - storage.data());
  for (size_t i = 0; i < storage.size(); ++i) {
    const bool outside = i < begin || i >= begin + shape_.shared_bytes;
    if (outside && storage[i] != std::byte{kRedZone} && error_.empty())
      error_ = "a write outside of shared memory";
  }
}

void Grid::PrepareFibers(Index3 block) {
  const Index3 threads = shape_.threads;
  blockIdx = block;
  blockDim = threads;
  gridDim = shape_.grid;
  const size_t count = size_t{threads.x} * threads.y * threads.z;
  tasks_.assign((count + 31) / 32, {});
  signatures_.assign((count + 127) / 128, {});
  while (fibers_.size() < count) {
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  }
  for (size_t i = 0; i < count; ++i) {
    Fiber& fiber = *fibers_[i];
    const unsigned n = static_cast<unsigned>(i);
    fiber.index = {n % threads.x, n / threads.x % threads.y, n / threads.x / threads.y};
    fiber.number = static_cast<int>(i);
    fiber.priority = has_priorities_ ? static_cast<uint32_t>(random_()) : 0;
    fiber.finished = false;
    fiber.fake_stack = nullptr;
    fiber.open_group.clear();
    fiber.groups.clear();
    fiber.context = ContextAtEntry(fiber.stack.get(), kStackBytes, FiberEntry);
    ready_.push_back(&fiber);
  }
}

void Grid::RunBlock(Index3 block) {
  std::vector<std::byte> storage;
  SetUpShared(storage);
  PrepareFibers(block);
  size_t running = ready_.size();
  while (running > 0 && error_.empty()) {
    RunSomeTask();
    if (!bulk_copies_.empty() && (ready_.empty() || EarlyCopy())) {
      PerformOneBulkCopy();
    } else if (ready_.empty()) {
      error_ = "threads wait for each other";
    } else {
      std::swap(ready_[PickReady()], ready_.back());
      Fiber& next = *ready_.back();
      ready_.pop_back();
      SwitchTo(next);
      running -= next.finished;
    }
  }
  if (error_.empty() && !bulk_copies_.empty()) error_ = "a block ends with bulk copies in flight";
  CheckTasksAreOver();
  CheckRedZones(storage);
}

std::string Grid::Run() {
  std::vector<Index3> blocks;
  for (unsigned z = 0; z < shape_.grid.z; ++z) {
    for (unsigned y = 0; y < shape_.grid.y; ++y) {
      for (unsigned x = 0; x < shape_.grid.x; ++x) blocks.push_back({x, y, z});
    }
  }
  std::shuffle(blocks.begin(), blocks.end(), random_);
  for (const Index3& block : blocks) {
    if (error_.empty()) RunBlock(block);
  }
  if (error_.empty() && std::ranges::any_of(counters_, [](const uint32_t* at) { return *at != 0; }))
    error_ = "a counter is not 0 after the grid";
  return error_;
}

void Grid::MeetWarp(uint32_t mask, const char* operation, void* argument, WarpOperation apply) {
  const int warp = current_->number / 32;
  const int lane = current_->number % 32;
  if ((mask >> lane & 1) == 0)
    Fail(std::string(operation) + ": the calling lane is not in its mask");
  auto meeting = std::find_if(meetings_.begin(), meetings_.end(), [&](const Meeting& m) {
    return m.warp == warp && (m.mask & mask) != 0;
  });
  if (meeting == meetings_.end()) {
    meetings_.push_back({warp, mask, operation, {}, 0});
    meeting = meetings_.end() - 1;
  }
  if (meeting->mask != mask || std::strcmp(meeting->operation, operation) != 0) {
    Fail("lanes of a warp meet in " + std::string(meeting->operation) + " and in " + operation);
  }
  meeting->arguments[lane] = argument;
  meeting->arrived |= 1u << lane;
  if (meeting->arrived != mask) return SwitchToScheduler(*current_);
  apply(meeting->arguments);
  meetings_.erase(meeting);
  for (int other = 0; other < 32; ++other) {
    if (other != lane && (mask >> other & 1) != 0)
      Wake(*fibers_[static_cast<size_t>(warp * 32 + other)]);
  }
}

void Grid::MeetBlock(int id, int num_threads) {
  if (id < 0 || id >= kNumBarriers) Fail("there is no barrier " + std::to_string(id));
  std::vector<Fiber*>& waiting = at_barrier_[id];
  if (static_cast<int>(waiting.size()) + 1 < num_threads) {
    waiting.push_back(current_);
    return SwitchToScheduler(*current_);
  }
  for (Fiber* fiber : waiting) Wake(*fiber);
  waiting.clear();
}

std::byte* Grid::SharedAt(uint32_t address, size_t bytes, size_t alignment) {
  if (address % alignment != 0)
    Fail("shared address " + std::to_string(address) + " is not aligned");
  if (address + bytes > shape_.shared_bytes)
    Fail("shared address " + std::to_string(address) + " is beyond the block's");
  return shared_ + address;
}

void Grid::Perform(const Copy& copy) { std::memcpy(copy.destination, copy.source, copy.bytes); }

void Grid::CopyAsync(const Copy& copy) {
  std::memset(copy.destination, kPoison, copy.bytes);
  if (EarlyCopy()) return Perform(copy);
  current_->open_group.push_back(copy);
}

void Grid::CommitCopies() {
  current_->groups.push_back(std::move(current_->open_group));
  current_->open_group.clear();
}

void Grid::WaitCopies(size_t groups_in_flight) {
  std::vector<Copy> due;
  std::deque<std::vector<Copy>>& groups = current_->groups;
  for (; groups.size() > groups_in_flight; groups.pop_front())
    due.insert(due.end(), groups.front().begin(), groups.front().end());
  std::shuffle(due.begin(), due.end(), random_);
  for (const Copy& copy : due) Perform(copy);
}

void Grid::BulkCopyAsync(const Copy& copy) {
  std::memset(copy.destination, kPoison, copy.bytes);
  bulk_copies_.push_back(copy);
}

void Grid::PerformOneBulkCopy() {
  std::swap(bulk_copies_[random_() % bulk_copies_.size()], bulk_copies_.back());
  const Copy copy = bulk_copies_.back();
  bulk_copies_.pop_back();
  Perform(copy);
  BarrierChange(copy.barrier, 0, -static_cast<int64_t>(copy.bytes));
}

void Grid::BarrierChange(uint32_t barrier, int arrivals, int64_t bytes) {
  auto* word = reinterpret_cast<TransactionBarrier*>(
      SharedAt(barrier, sizeof(TransactionBarrier), 8));
  word->pending_bytes += static_cast<int32_t>(bytes);
  word->pending_arrivals = static_cast<int16_t>(word->pending_arrivals - arrivals);
  if (word->pending_arrivals < 0) Fail("more arrivals than the barrier was made for");
  if (word->pending_arrivals > 0 || word->pending_bytes != 0) return;
  word->arrivals_and_phase ^= 0x8000u;
  word->pending_arrivals = static_cast<int16_t>(word->arrivals_and_phase & 0x7fffu);
  std::erase_if(transaction_waiters_, [&](const auto& waiter) {
    if (waiter.first == barrier) Wake(*waiter.second);
    return waiter.first == barrier;
  });
}

void Grid::BarrierWait(uint32_t barrier, uint32_t parity) {
  const auto* word = reinterpret_cast<const TransactionBarrier*>(
      SharedAt(barrier, sizeof(TransactionBarrier), 8));
  while (word->Phase() == parity) {
    transaction_waiters_.emplace_back(barrier, current_);
    SwitchToScheduler(*current_);
  }
}

void Grid::AnnounceTask(uint64_t signature) {
  WarpTasks& mine = tasks();
  if (!mine.fenced) Fail("a task is issued without a fence after the last wait");
  std::vector<uint64_t>& signatures = signatures_[static_cast<size_t>(current_->number / 128)];
  if (mine.num_issued == signatures.size()) signatures.push_back(signature);
  if (signatures[mine.num_issued++] != signature)
    Fail("warps of a warpgroup issue different tasks");
}

void Grid::IssueTask(WarpTask task) {
  WarpTasks& mine = tasks();
  ++num_tasks_;
  mine.entries.push_back({std::move(task), mine.open_group, false});
  if (EarlyCopy()) RunTasksUpTo(mine, mine.entries.size());
}

void Grid::RunTasksUpTo(WarpTasks& tasks, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    WarpTasks::Entry& entry = tasks.entries[i];
    if (!entry.has_run) entry.task.run();
    entry.has_run = true;
  }
}

void Grid::RunSomeTask() {
  if (num_tasks_ == 0 || options_.copy_timing != CopyTiming::kShuffled) return;
  WarpTasks& tasks = tasks_[random_() % tasks_.size()];
  if (!tasks.entries.empty()) RunTasksUpTo(tasks, random_() % (tasks.entries.size() + 1));
}

void Grid::WaitTasks(size_t groups_in_flight) {
  WarpTasks& mine = tasks();
  mine.fenced = false;
  while (!mine.entries.empty() && mine.entries.front().group + groups_in_flight < mine.open_group) {
    RunTasksUpTo(mine, 1);
    mine.entries.front().task.publish();
    mine.entries.pop_front();
    --num_tasks_;
  }
}

void Grid::CheckTasksAreOver() {
  for (size_t i = 0; i < tasks_.size() && error_.empty(); ++i) {
    if (!tasks_[i].entries.empty()) error_ = "a warp ends with tasks in flight";
    if (tasks_[i].num_issued != signatures_[i / 4].size())
      error_ = "a warp issues fewer tasks than its warpgroup";
  }
  tasks_.clear();
}

}  // namespace

void SetGridOptions(const GridOptions& options) { grid_options = options; }

std::string RunGrid(const GridShape& shape, const std::function<void()>& thread) {
  Grid local(shape, grid_options, thread);
  grid = &local;
  std::string error = local.Run();
  grid = nullptr;
  return error;
}

int CurrentLane() { return grid->current().number % 32; }
void Fail(std::string message) {
  grid->Fail(std::move(message));
  std::abort();
}
void MeetWarp(uint32_t mask, const char* operation, void* argument, WarpOperation apply) {
  grid->MeetWarp(mask, operation, argument, apply);
}
void MeetBlock(int id, int num_threads) { grid->MeetBlock(id, num_threads); }
std::byte* SharedBase() { return grid->shared(); }
std::byte* SharedAt(uint32_t address, size_t bytes, size_t alignment) {
  return grid->SharedAt(address, bytes, alignment);
}
void CopyAsync(uint32_t destination, const void* source, size_t bytes) {
  grid->CopyAsync({SharedAt(destination, bytes, bytes), source, bytes, 0});
}
void CommitCopies() { grid->CommitCopies(); }
void WaitCopies(size_t groups_in_flight) { grid->WaitCopies(groups_in_flight); }
void AnnounceTask(uint64_t signature) { grid->AnnounceTask(signature); }
void IssueTask(WarpTask task) { grid->IssueTask(std::move(task)); }
void FenceTasks() { grid->tasks().fenced = true; }
void CommitTasks() { ++grid->tasks().open_group; }
void WaitTasks(size_t groups_in_flight) { grid->WaitTasks(groups_in_flight); }
uint32_t CountInTurn(uint32_t* counter, uint32_t last) { return grid->CountInTurn(counter, last); }
void BulkCopyAsync(uint32_t destination, const void* source, size_t bytes, uint32_t barrier) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(source) % 16 != 0)
    Fail("a bulk copy is not a multiple of 16 bytes");
  grid->BulkCopyAsync({SharedAt(destination, bytes, 16), source, bytes, barrier});
}
void BarrierInit(uint32_t barrier, int arrivals) {
  const TransactionBarrier word{0, static_cast<int16_t>(arrivals), static_cast<uint16_t>(arrivals)};
  std::memcpy(SharedAt(barrier, sizeof(word), 8), &word, sizeof(word));
}
void BarrierArrive(uint32_t barrier, int64_t expected_bytes) {
  grid->BarrierChange(barrier, 1, expected_bytes);
}
void BarrierWait(uint32_t barrier, uint32_t parity) { grid->BarrierWait(barrier, parity); }

}  // namespace diffserve::shim
