// From one stack to another and back, without asking the system for the signal mask as swapcontext
// does at every switch. x86-64.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__has_feature)  // clang's way to say it
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace diffserve::shim {

// A place on a stack where somebody waits to go on: what Switch saves lies below it.
struct Place {
  void* stack_pointer = nullptr;
};

// Saves what a called function must keep in `from`, and goes on where `to` was left. The stack of
// `to` decides where that returns.
extern "C" void DiffserveShimSwitch(Place* from, const Place* to);

// The beginning of entry() on a stack of its own, whose earlier contents are forgotten. entry()
// never returns.
inline Place PlaceAtEntry(std::byte* stack, size_t stack_bytes, void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack, stack_bytes);
#endif
  constexpr size_t kSavedRegisters = 6;
  auto* top = reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(stack) + stack_bytes) / 16 *
                                          16);
  *--top = 0;  // no caller; the stack pointer is now as a call leaves it
  *--top = reinterpret_cast<uint64_t>(entry);
  for (size_t i = 0; i < kSavedRegisters; ++i) *--top = 0;
  return {top};
}

}  // namespace diffserve::shim
