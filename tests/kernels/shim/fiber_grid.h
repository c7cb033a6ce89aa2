// SPDX-License-Identifier: Apache-2.0
// Runs a CUDA grid on one CPU thread. Each GPU thread is a fiber, and a seed chooses which of the
// runnable ones runs next. Blocks run one after another in shuffled order. Asynchronous copies
// happen at any moment that the hardware allows; until then their destination holds NaNs. Shared
// memory is fresh NaNs for each block, between two red zones.
//
// A fault of the kernel (threads that wait for each other, lanes that meet in different operations,
// an address out of range) ends the grid with a message.
//
// This cannot find the following faults; check them first on a GPU:
//   1. A missing fence.proxy.async or fence.mbarrier_init: here all accesses see one memory. Run
//   1,000 times and require equal bits: decode with bulk copies and partial pages, also through a
//   window with more pages per split than stages, since slots outside are cleared in the ring that
//   bulk copies refill; and Hopper prefill over chunks that end inside a page, since the warp that
//   fetches clears V's last slots for wgmma.
//   2. Inline PTX itself (ptx.cuh and wgmma.cuh are replaced here): run every wrapper once against
//   its replacement.
//   3. Lanes that reach a shuffle, ldmatrix, mma or wgmma separately: here they are brought
//   together. Run synccheck and racecheck of compute-sanitizer on the small cases of the kernels'
//   tests (raw bulk copies give racecheck false alarms).
//   4. Order between thread blocks, and between kernels of a stream: blocks run whole but for the
//   wait of a dependent launch, and kernels run one at a time. Run decode in a graph 1,000 times
//   and require equal bits.
//   5. The compiler: ptxas before 13.3 may reuse the A registers of a wgmma too early (no GPU is
//   needed: tests/cuda/sass_walk.py looks at the machine code), and once gave wrong shared
//   addresses to an mma.sync kernel (the cases that expect exact values).
//   6. Rounding that others measured wrongly, or on other GPUs than A100 and H100 (tensor_core.h,
//   approximations.h), and fused products and sums; rerun the tests against the reference.
//   7. Launch limits, time-outs, deadlocks of real timing (setmaxnreg, blocks of a cluster that end
//   early), misaligned vector loads from global memory, offsets beyond 2^31 elements, bank
//   conflicts (kv_format_test computes those of ldmatrix).
//   8. The meaning of a wgmma descriptor: its fields are decoded here by the kernel's own reading
//   of the PTX manual. Run DiffAttentionTest.QueryThatPicksOneSlotReadsItsVExactly on a Hopper GPU:
//   wrong numbers identify the slot and the column.
//   9. A register written between wgmma.fence and the wgmma that uses it: this only requires one
//   fence since the last wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace diffserve::shim {

struct Index3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

enum class CopyTiming {
  kEarly,     // when issued: exposes a destination that is still being read
  kLate,      // when waited for: exposes a missing wait
  kShuffled,  // each copy at some time between
};

struct GridOptions {
  // Odd and above 1: each thread has a priority, so that some fall as far behind as they can.
  uint32_t seed = 1;
  CopyTiming copy_timing = CopyTiming::kShuffled;
};

// Applies to the grids run after it.
void SetGridOptions(const GridOptions& options);

struct GridShape {
  Index3 grid;
  Index3 threads;  // per thread block
  size_t shared_bytes = 0;
  // May start before the kernel before it on its stream ends. Each thread must wait for that one,
  // and may launch dependents only afterwards.
  bool is_dependent = false;
};

// Returns "" or the kernel's fault; memory is then as the fault left it.
std::string RunGrid(const GridShape& shape, const std::function<void()>& thread);

// A dependent grid whose first thread blocks run up to the wait, all side by side, before the
// kernel before it does anything. Such kernels have no __shared__ variables, which blocks would
// share here.
class Grid;
class EarlyGrid {
 public:
  EarlyGrid(const GridShape& shape, std::function<void()> thread);
  ~EarlyGrid();
  std::string RunToWaits();
  std::string RunRest();

 private:
  const GridShape shape_;
  const std::function<void()> thread_;
  std::vector<Index3> blocks_;
  std::vector<std::unique_ptr<Grid>> started_;  // of the first blocks
};
// Whether the next dependent grid starts early: the seed decides, and then whether it is watched.
bool StartsEarly();

// ---- For the replacements of PTX and of CUDA's built-ins; called by the running fiber.

// CUDA's built-in variables of the running fiber.
inline Index3 threadIdx, blockIdx, blockDim, gridDim;
int CurrentLane();

// Ends the grid.
[[noreturn]] void Fail(std::string message);

// All lanes of `mask` meet in one operation. The last one applies it to the arguments of all
// (nullptr outside the mask).
using WarpOperation = void (*)(void* const (&lanes)[32]);
void MeetWarp(uint32_t mask, const char* operation, void* argument, WarpOperation apply);

// Barrier `id` of the block; every `num_threads` arrivals release it.
void MeetBlock(int id, int num_threads);

std::byte* SharedBase();
// No precondition: an address that is misaligned or outside the block's shared memory ends the
// grid.
std::byte* SharedAt(uint32_t address, size_t bytes, size_t alignment);

void CopyAsync(uint32_t destination, const void* source, size_t bytes);
void CommitCopies();
void WaitCopies(size_t groups_in_flight);

// An operation that a warp has started and that runs asynchronously (wgmma).
struct WarpTask {
  // Called before it is waited for, at a time set by `copy_timing`, after earlier tasks.
  std::function<void()> run;
  std::function<void()> publish;  // when it is waited for
};
// Called by the operation in which a warp meets. A task is announced, which may end the grid,
// before anything is allocated that would leak. The n-th tasks of a warpgroup's four warps must
// have the same signature.
void AnnounceTask(uint64_t signature);
void IssueTask(WarpTask task);
void FenceTasks();  // since the last WaitTasks, before a task
void CommitTasks();
void WaitTasks(size_t groups_in_flight);

// A counter in global memory. One that is not 0 after the grid is the kernel's fault: the next
// launch would count on from there.
uint32_t CountInTurn(uint32_t* counter, uint32_t last);

void WaitForPrevious();
void LaunchDependents();

void BulkCopyAsync(uint32_t destination, const void* source, size_t bytes, uint32_t barrier);
void BarrierInit(uint32_t barrier, int arrivals);
void BarrierArrive(uint32_t barrier, int64_t expected_bytes);
void BarrierWait(uint32_t barrier, uint32_t parity);

}  // namespace diffserve::shim
