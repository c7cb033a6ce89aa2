// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/signal_stack.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace diffserve {
namespace {

constexpr size_t kHandlerBytes = size_t{48} << 10;  // a backtrace takes most of it

// What the processor's registers take on it is up to the system.
size_t StackBytes() {
  return kHandlerBytes + static_cast<size_t>(std::max(0L, sysconf(_SC_MINSIGSTKSZ)));
}

}  // namespace

SignalStack::SignalStack()
    : bytes_(StackBytes()),
      memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0)) {
  if (memory_ == MAP_FAILED) return;
  stack_t stack{};
  stack.ss_sp = memory_;
  stack.ss_size = bytes_;
  sigaltstack(&stack, &before_);
}

SignalStack::~SignalStack() {
  if (memory_ == MAP_FAILED) return;
  sigaltstack(&before_, nullptr);
  munmap(memory_, bytes_);
}

}  // namespace diffserve
