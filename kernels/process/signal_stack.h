// SPDX-License-Identifier: Apache-2.0
// A stack for the signal handlers of the calling thread, so that they can run when its own is used
// up. Destroyed on the same thread, which then has the one from before. Without memory for it the
// thread has none: only the report of a stack overflow is lost.
#pragma once

#include <signal.h>

#include <cstddef>

namespace diffserve {

class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  const size_t bytes_;
  void* const memory_;  // MAP_FAILED: none
  stack_t before_{};
};

}  // namespace diffserve
