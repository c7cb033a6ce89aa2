// The memory reserve: some MiB held back for the moment when the system gives no more. A small
// allocation that fails gets memory of it and is tried again, so that the threads that serve all
// requests go on while what needs much ends. Whoever lets requests in asks MemoryIsShort and lets
// none in until three quarters of the reserve are there again.
//
// The program's malloc (server/allocation/malloc.cc) asks it for every allocation of the process,
// those of libraries too. Most of the reserve is pieces of the heap, since under a limit the system
// might not give address space again; a little of it is mapped, for libraries that map memory by
// themselves and end the process where that fails.
//
// Thread safety: FillMemoryReserve on one thread, the first one (glibc's main arena, which every
// other thread falls back to, is its own); the rest from any thread. None throws or waits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace diffserve {

// Of an allocation that may use the reserve on any thread: gRPC reads into 64 KiB and a header.
inline constexpr size_t kSmallAllocationBytes = 96 << 10;
inline constexpr int kMemoryReservePieces = 256;  // each for one small allocation at least

// Holds back what is missing of the reserve, as far as there is heap for it. False: it is less than
// three quarters of it. What is mapped comes back when the system gives it.
bool FillMemoryReserve() noexcept;
// Frees all of it; memory is not short then.
void DropMemoryReserve() noexcept;

// An allocation has failed. True: some of the reserve is free now, and it is worth another try.
bool GiveFromMemoryReserve(size_t asked_bytes) noexcept;
// The same for memory that a library maps: true: some address space is free now.
bool UnmapFromMemoryReserve(size_t asked_bytes) noexcept;
// A piece of the reserve itself, to be freed like any memory; nullptr if none is left or a piece is
// too small. For threads whose part of the heap cannot use what was freed.
void* TakeMemoryReservePiece(size_t asked_bytes) noexcept;

bool MemoryIsShort() noexcept;           // the reserve was used and is not back
uint64_t NumMemoryShortages() noexcept;  // how often it began to be short
int NumMemoryReservePieces() noexcept;   // that are left

// Throws std::bad_alloc if the process cannot take so much now. For work in a library that ends the
// process where it finds no memory; asks for nothing if the reserve can serve such work.
void RequireMemory(size_t bytes);

// While one lives, its thread, which works for all requests, may use the reserve for allocations of
// any size.
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
