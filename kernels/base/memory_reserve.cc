// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/memory_reserve.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <new>
#include <span>
#include <utility>

namespace diffserve {
namespace {

// Below the size that glibc maps separately.
constexpr size_t kPieceBytes = kSmallAllocationBytes + (4 << 10);
constexpr size_t kPiecesAtATime = 4;
constexpr int kEnoughPieces = kMemoryReservePieces / 4 * 3;

constexpr size_t kMappingBytes = 1 << 20;

std::atomic<void*> pieces[kMemoryReservePieces];
std::atomic<void*> mappings[4];
std::atomic<bool> is_short{false};
std::atomic<uint64_t> shortages{0};
thread_local bool works_for_all = false;
thread_local bool fills = false;  // while true, its own failures do not use the reserve

void* Map(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                            0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void* TakeFrom(std::span<std::atomic<void*>> places) {
  for (std::atomic<void*>& place : places) {
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    void* const piece = place.exchange(nullptr, std::memory_order_acq_rel);
    if (piece == nullptr) continue;
    if (!is_short.exchange(true)) ++shortages;
    return piece;
  }
  return nullptr;
}

void* TakePiece() { return TakeFrom(pieces); }

}  // namespace

bool FillMemoryReserve() noexcept {
  fills = true;
  for (std::atomic<void*>& place : pieces) {
    if (place.load(std::memory_order_relaxed) != nullptr) continue;
    void* const piece = std::malloc(kPieceBytes);
    if (piece == nullptr) break;
    place.store(piece, std::memory_order_release);
  }
  for (std::atomic<void*>& place : mappings) {
    if (place.load(std::memory_order_relaxed) == nullptr)
      place.store(Map(kMappingBytes), std::memory_order_release);
  }
  fills = false;
  const bool is_there = NumMemoryReservePieces() >= kEnoughPieces;
  if (is_there) is_short = false;
  return is_there;
}

void DropMemoryReserve() noexcept {
  for (std::atomic<void*>& place : pieces) std::free(place.exchange(nullptr));
  for (std::atomic<void*>& place : mappings) {
    if (void* const memory = place.exchange(nullptr); memory != nullptr)
      munmap(memory, kMappingBytes);
  }
  is_short = false;
}

bool GiveFromMemoryReserve(size_t asked_bytes) noexcept {
  if (fills || (asked_bytes > kSmallAllocationBytes && !works_for_all)) return false;
  const size_t wanted = std::max(kPiecesAtATime, 2 * (asked_bytes / kPieceBytes));
  size_t given = 0;
  for (; given < wanted; ++given) {
    void* const piece = TakePiece();
    if (piece == nullptr) break;
    std::free(piece);
  }
  return given > 0;
}

bool UnmapFromMemoryReserve(size_t asked_bytes) noexcept {
  if (fills || asked_bytes > kMappingBytes) return false;
  void* const memory = TakeFrom(mappings);
  if (memory == nullptr) return false;
  munmap(memory, kMappingBytes);
  return true;
}

void* TakeMemoryReservePiece(size_t asked_bytes) noexcept {
  return fills || asked_bytes > kPieceBytes ? nullptr : TakePiece();
}

bool MemoryIsShort() noexcept { return is_short.load(std::memory_order_relaxed); }

uint64_t NumMemoryShortages() noexcept { return shortages.load(std::memory_order_relaxed); }

int NumMemoryReservePieces() noexcept {
  return static_cast<int>(std::count_if(
      std::begin(pieces), std::end(pieces),
      [](const auto& place) { return place.load(std::memory_order_relaxed) != nullptr; }));
}

// Mapped, so that no heap changes; untouched, so that it costs no memory.
void RequireMemory(size_t bytes) {
  if (bytes <= kSmallAllocationBytes) return;
  const bool before = std::exchange(fills, true);
  void* const memory = Map(bytes);
  fills = before;
  if (memory == nullptr) throw std::bad_alloc();
  munmap(memory, bytes);
}

WorksForAllRequests::WorksForAllRequests() noexcept : before_(std::exchange(works_for_all, true)) {}
WorksForAllRequests::~WorksForAllRequests() { works_for_all = before_; }

}  // namespace diffserve
