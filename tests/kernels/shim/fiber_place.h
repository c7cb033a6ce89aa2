// From one stack to another and back.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#if defined(__has_feature)  // clang's way to say it
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

namespace diffserve::shim {

// A place on a stack. swapcontext asks the system for the signal mask at every switch; _setjmp does not.
struct Place {
  ucontext_t context;
  jmp_buf jump;
  bool has_jump = false;  // it has been left by _setjmp
};

// Leaves `from` for `to`; returns when somebody switches back. AddressSanitizer follows swapcontext alone.
inline void Switch(Place& from, Place& to) {
#if defined(__SANITIZE_ADDRESS__)
  swapcontext(&from.context, &to.context);
#else
  from.has_jump = true;
  if (_setjmp(from.jump) != 0) return;
  if (to.has_jump) _longjmp(to.jump, 1);
  setcontext(&to.context);
#endif
}

}  // namespace diffserve::shim
