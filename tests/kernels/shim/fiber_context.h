// SPDX-License-Identifier: Apache-2.0
// Switches from one stack to another, without a system call for the signal mask as swapcontext
// makes at every switch. x86-64.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__has_feature)  // clang's form
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace diffserve::shim {

// A point on a stack at which a fiber continues; Switch saves registers below it.
struct FiberContext {
  void* stack_pointer = nullptr;
};

// Saves the callee-saved registers in `from`, and continues where `to` was left. The stack of `to`
// determines where that returns.
extern "C" void DiffserveShimSwitch(FiberContext* from, const FiberContext* to);

// The beginning of entry() on its own stack, whose earlier contents are dropped. entry() never
// returns.
inline FiberContext ContextAtEntry(std::byte* stack, size_t stack_bytes, void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack, stack_bytes);
#endif
  constexpr size_t kSavedRegisters = 6;
  auto* top = reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(stack) + stack_bytes) / 16 *
                                          16);
  *--top = 0;  // no caller; the stack pointer is now as after a call
  *--top = reinterpret_cast<uint64_t>(entry);
  for (size_t i = 0; i < kSavedRegisters; ++i) *--top = 0;
  return {top};
}

}  // namespace diffserve::shim
