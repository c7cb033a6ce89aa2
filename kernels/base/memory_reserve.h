// SPDX-License-Identifier: Apache-2.0
// The memory reserve: some MiB held back for the moment when the system gives no more. When a small
// allocation fails, the reserve frees memory and the allocation is tried again. So the threads that
// serve all requests continue while requests that need much memory end. Admission checks
// MemoryIsShort, and admits no request until three quarters of the reserve are back.
//
// The program's malloc (server/allocation/malloc.cc) calls it for every failed allocation of the
// process, libraries included. Most of the reserve is pieces of the heap, since under a limit the
// system might not give address space again. A little of it is mapped, for libraries that map
// memory themselves and end the process if that fails.
//
// Thread safety: call FillMemoryReserve on the first thread only, which owns glibc's main arena,
// the fallback of every other thread. Call the rest from any thread. None throws or waits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace diffserve {

// Largest allocation that may use the reserve on any thread: gRPC reads into 64 KiB and a header.
inline constexpr size_t kSmallAllocationBytes = 96 << 10;
inline constexpr int kMemoryReservePieces = 256;  // each serves at least one small allocation

// Refills the reserve as far as the heap allows. False: it is below three quarters. The mapped part
// comes back when the system gives it.
bool FillMemoryReserve() noexcept;
// Frees all of it. Afterwards memory does not count as short.
void DropMemoryReserve() noexcept;

// Call when an allocation has failed. True: part of the reserve is free now, so try again.
bool GiveFromMemoryReserve(size_t asked_bytes) noexcept;
// The same for memory that a library maps. True: some address space is free now.
bool UnmapFromMemoryReserve(size_t asked_bytes) noexcept;
// Returns a piece of the reserve itself, to be freed like any memory; nullptr if none is left or a
// piece is too small. For threads whose arena cannot use what was freed.
void* TakeMemoryReservePiece(size_t asked_bytes) noexcept;

bool MemoryIsShort() noexcept;           // the reserve was used and is not refilled
uint64_t NumMemoryShortages() noexcept;  // number of times that it became short
int NumMemoryReservePieces() noexcept;   // that are left

// Throws std::bad_alloc if the process cannot take `bytes` now. For work in a library that ends the
// process when memory runs out. Does nothing if the reserve can serve such work.
void RequireMemory(size_t bytes);

// While one lives, its thread may use the reserve for allocations of any size. For threads that
// work for all requests.
class WorksForAllRequests {
 public:
  WorksForAllRequests() noexcept;
  ~WorksForAllRequests();
  WorksForAllRequests(const WorksForAllRequests&) = delete;
  WorksForAllRequests& operator=(const WorksForAllRequests&) = delete;

 private:
  const bool before_;
};

}  // namespace diffserve
