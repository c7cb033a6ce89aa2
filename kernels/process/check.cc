// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/check.h"

#include <cstdio>
#include <cstdlib>

#include "kernels/process/crash_report.h"

namespace diffserve {

void CheckFailed(const char* file, int line, const char* condition, std::string_view reason) {
  if (NoteFailedCheck(file, line, condition, reason)) std::abort();
  std::fprintf(stderr, "%s:%d: check failed: %s: %.*s\n", file, line, condition,
               static_cast<int>(reason.size()), reason.data());
  std::abort();
}

}  // namespace diffserve
