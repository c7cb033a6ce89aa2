// Runs a CUDA grid on one CPU thread: each GPU thread is a fiber, and a seed decides which of those
// that can run runs next. Blocks run one after another in shuffled order. Asynchronous copies
// happen at any moment that the hardware allows, until then their destination holds NaNs. Shared
// memory is fresh NaNs for each block, between two red zones.
//
// A kernel's own fault (threads that wait for each other, lanes that meet in different operations,
// an address out of range) ends the grid with a message.
//
// What this cannot find, to be run first on a GPU:
//   1. A missing fence.proxy.async or fence.mbarrier_init: here all accesses see one memory. Decode
//      with bulk copies, items of several splits and partial pages, 1,000 times, all bits equal:
//      its merge writes into the ring that bulk copies refill. Decode through a window with more
//      strips of a split than stages, likewise: what lies before the window is cleared in the ring.
//      Hopper prefill over chunks that end inside a page, likewise: the warp that fetches clears
//      V's last slots for wgmma.
//   2. Inline PTX itself (ptx.cuh and wgmma.cuh are replaced here): every wrapper once against its
//      replacement.
//   3. Lanes that reach a shuffle, ldmatrix, mma or wgmma apart from each other: here they are
//      brought together. synccheck and racecheck of compute-sanitizer on the small cases of the
//      kernels' tests (raw bulk copies give racecheck false alarms).
//   4. Order between thread blocks, and between kernels of a stream: blocks run whole, kernels run
//      alone. Decode with its combine in a graph, 1,000 times, all bits equal.
//   5. The compiler: ptxas before 13.3 may reuse the A registers of a wgmma too early
//      (integer-valued cases with wgmma), and once gave wrong shared addresses to an mma.sync
//      kernel (the cases that expect exact values).
//   6. Rounding: ex2.approx, rsqrt.approx (2 ulp) and the truncating sums of mma and wgmma; the
//      tests against the reference again. That a product of zeros leaves an accumulator's bits
//      alone, on which a row's independence of its tile rests.
//   7. Launch limits, time outs, deadlocks of real timing (setmaxnreg, blocks of a cluster that end
//      early), misaligned vector loads from global memory, offsets beyond 2^31 elements, bank
//      conflicts (kv_format_test computes those of ldmatrix).
//   8. What a wgmma descriptor means: its fields are decoded here by the same reading of the PTX
//      manual that the kernel has. DiffPrefillTest.AQueryThatPicksOneSlotReadsItsVExactly/Hopper,
//      whose wrong numbers tell the slot and the column.
//   9. A register written between wgmma.fence and the wgmma that takes it: one fence since the last
//      wait is all that is asked for here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace diffserve::shim {

struct Index3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

enum class CopyTiming {
  kEarly,     // when issued: shows a destination that is still being read
  kLate,      // when somebody waits for it: shows a missing wait
  kShuffled,  // each copy at some time between
};

struct GridOptions {
  uint32_t seed = 1;  // odd and above 1: each thread has a priority, so that some fall as far
                      // behind as they can
  CopyTiming copy_timing = CopyTiming::kShuffled;
};

// Of the grids run after it.
void SetGridOptions(const GridOptions& options);

struct GridShape {
  Index3 grid;
  Index3 threads;  // of a block
  size_t shared_bytes = 0;
};

// Empty, or what the kernel did wrong; memory is then as the fault left it.
std::string RunGrid(const GridShape& shape, const std::function<void()>& thread);

// ---- For the replacements of PTX and of CUDA's built-ins; called by the fiber that is running.

// CUDA's built-in variables of the fiber that is running.
inline Index3 threadIdx, blockIdx, blockDim, gridDim;
int CurrentLane();

// Ends the grid.
[[noreturn]] void Fail(std::string message);

// All lanes of `mask` meet in one operation: the last one applies it to the arguments of all
// (nullptr outside the mask).
using WarpOperation = void (*)(void* const (&lanes)[32]);
void MeetWarp(uint32_t mask, const char* operation, void* argument, WarpOperation apply);

// Barrier `id` of the block; every `num_threads` arrivals release it.
void MeetBlock(int id, int num_threads);

std::byte* SharedBase();
// REQUIRES nothing: an address out of the block's shared memory, or not aligned, ends the grid.
std::byte* SharedAt(uint32_t address, size_t bytes, size_t alignment);

void CopyAsync(uint32_t destination, const void* source, size_t bytes);
void CommitCopies();
void WaitCopies(size_t groups_in_flight);

// What a warp has begun and goes on behind its program (wgmma).
struct WarpTask {
  std::function<void()> run;  // at some time before it is waited for, by `copy_timing`, and after
                              // the tasks issued before
  std::function<void()> publish;  // when it is waited for
};
// By the operation that a warp meets in. A task is announced, which may end the grid, before
// anything is made that would leak.
void AnnounceTask(uint64_t signature);  // the n-th tasks of the four warps of a warpgroup must have
                                        // the same
void IssueTask(WarpTask task);
void FenceTasks();  // since the last WaitTasks, before a task
void CommitTasks();
void WaitTasks(size_t groups_in_flight);

void BulkCopyAsync(uint32_t destination, const void* source, size_t bytes, uint32_t barrier);
void BarrierInit(uint32_t barrier, int arrivals);
void BarrierArrive(uint32_t barrier, int64_t expected_bytes);
void BarrierWait(uint32_t barrier, uint32_t parity);

}  // namespace diffserve::shim
