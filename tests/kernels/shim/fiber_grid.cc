// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/shim/fiber_grid.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "tests/kernels/shim/device_memory.h"
#include "tests/kernels/shim/grid.h"

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

// Stacks that no fiber uses.
std::vector<std::unique_ptr<std::byte[]>> free_stacks;

std::unique_ptr<std::byte[]> TakeStack() {
  if (free_stacks.empty()) return std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  std::unique_ptr<std::byte[]> stack = std::move(free_stacks.back());
  free_stacks.pop_back();
  return stack;
}

// A fiber's entry has no argument and finds its grid here.
void FiberEntry() { grid->RunThread(); }

}  // namespace

std::vector<Index3> BlocksOf(const Index3& count) {
  std::vector<Index3> blocks;
  for (unsigned z = 0; z < count.z; ++z) {
    for (unsigned y = 0; y < count.y; ++y) {
      for (unsigned x = 0; x < count.x; ++x) blocks.push_back({x, y, z});
    }
  }
  return blocks;
}

Grid::~Grid() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(storage_.data(), storage_.size());
#endif
  for (const std::unique_ptr<Fiber>& fiber : fibers_)
    free_stacks.push_back(std::move(fiber->stack));
}

void Grid::RunThread() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
  thread_();
  bool in_flight = !current_->open_group.empty();
  for (const std::vector<Copy>& group : current_->groups) in_flight |= !group.empty();
  if (in_flight) Fail("a thread ends with copies in flight");
  if (shape_.is_dependent && !current_->has_waited)
    Fail("a thread ends without a wait for the kernel before");
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

void Grid::SetUpShared() {
  storage_.assign(shape_.shared_bytes + 3 * kRedZoneBytes, std::byte{kRedZone});
  const uintptr_t begin = reinterpret_cast<uintptr_t>(storage_.data()) + kRedZoneBytes;
  shared_ = reinterpret_cast<std::byte*>((begin + kRedZoneBytes - 1) / kRedZoneBytes *
                                         kRedZoneBytes);
  std::memset(shared_, kPoison, shape_.shared_bytes);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(storage_.data(), static_cast<size_t>(shared_ - storage_.data()));
  __asan_poison_memory_region(shared_ + shape_.shared_bytes, kRedZoneBytes);
#endif
}

void Grid::CheckRedZones() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(storage_.data(), storage_.size());
#endif
  const std::span<const std::byte> all(storage_);
  const size_t begin = static_cast<size_t>(shared_ - storage_.data());
  const auto is_red = [](std::span<const std::byte> zone) {
    return std::ranges::all_of(zone, [](std::byte b) { return b == std::byte{kRedZone}; });
  };
  if (error_.empty() &&
      !(is_red(all.first(begin)) && is_red(all.subspan(begin + shape_.shared_bytes))))
    error_ = "a write outside of shared memory";
}

void Grid::PrepareFibers(Index3 block) {
  const Index3 threads = shape_.threads;
  block_ = block;
  const size_t count = size_t{threads.x} * threads.y * threads.z;
  tasks_.assign((count + 31) / 32, {});
  signatures_.assign((count + 127) / 128, {});
  while (fibers_.size() < count) {
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->stack = TakeStack();
  }
  for (size_t i = 0; i < count; ++i) {
    Fiber& fiber = *fibers_[i];
    const unsigned n = static_cast<unsigned>(i);
    fiber.index = {n % threads.x, n / threads.x % threads.y, n / threads.x / threads.y};
    fiber.number = static_cast<int>(i);
    fiber.priority = has_priorities_ ? static_cast<uint32_t>(random_()) : 0;
    fiber.finished = false;
    fiber.has_waited = false;
    fiber.fake_stack = nullptr;
    fiber.open_group.clear();
    fiber.groups.clear();
    fiber.context = ContextAtEntry(fiber.stack.get(), kStackBytes, FiberEntry);
    ready_.push_back(&fiber);
  }
}

void Grid::BeginBlock(Index3 block) {
  SetUpShared();
  PrepareFibers(block);
  running_ = ready_.size();
}

void Grid::RunFibers() {
  blockIdx = block_;
  blockDim = shape_.threads;
  gridDim = shape_.grid;
  while (running_ > held_.size() && error_.empty()) {
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
      running_ -= next.finished;
    }
  }
}

void Grid::EndBlock() {
  if (error_.empty() && !bulk_copies_.empty()) error_ = "a block ends with bulk copies in flight";
  CheckTasksAreOver();
  CheckRedZones();
}

void Grid::RunBlock(Index3 block) {
  BeginBlock(block);
  RunFibers();
  EndBlock();
}

std::string Grid::Start(Index3 block) {
  holds_ = true;
  BeginBlock(block);
  RunFibers();
  return error_;
}

std::string Grid::Finish() {
  CheckEarlyBulkCopies();
  holds_ = false;
  for (Fiber* fiber : held_) Wake(*fiber);
  held_.clear();
  RunFibers();
  EndBlock();
  return error_;
}

void Grid::WaitForPrevious() {
  current_->has_waited = true;
  if (!holds_) return;
  held_.push_back(current_);
  SwitchToScheduler(*current_);
}

std::string Grid::Run() {
  std::vector<Index3> blocks = BlocksOf(shape_.grid);
  std::shuffle(blocks.begin(), blocks.end(), random_);
  for (const Index3& block : blocks) {
    if (error_.empty()) RunBlock(block);
  }
  if (error_.empty() && HasCounters()) error_ = kOpenCounters;
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
  // A source that must not be read yet shows now.
  if (holds_) static_cast<void>(*static_cast<const volatile char*>(copy.source));
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
  if (!holds_) return;
  ReadUnnoted(copy.source, [&] {
    const auto* bytes = static_cast<const std::byte*>(copy.source);
    early_bulk_copies_.push_back({bytes, std::vector<std::byte>(bytes, bytes + copy.bytes)});
  });
}

void Grid::CheckEarlyBulkCopies() {
  for (const auto& [source, bytes] : early_bulk_copies_) {
    if (std::memcmp(source, bytes.data(), bytes.size()) != 0)
      error_ = "a bulk copy before the wait of what the kernel before writes";
  }
  early_bulk_copies_.clear();
}

void Grid::PerformOneBulkCopy() {
  std::swap(bulk_copies_[random_() % bulk_copies_.size()], bulk_copies_.back());
  const Copy copy = bulk_copies_.back();
  bulk_copies_.pop_back();
  ReadUnnoted(copy.source, [&] { Perform(copy); });
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

void SetGridOptions(const GridOptions& options) { grid_options = options; }

std::string RunGrid(const GridShape& shape, const std::function<void()>& thread) {
  Grid local(shape, grid_options, thread, grid_options.seed);
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
void WaitForPrevious() { grid->WaitForPrevious(); }
void LaunchDependents() { grid->LaunchDependents(); }
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
