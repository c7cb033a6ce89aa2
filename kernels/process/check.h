// SPDX-License-Identifier: Apache-2.0
// DS_CHECK: an invariant of our own, active in every build. A failure writes file, line and reason
// to stderr (crash_report.h), and aborts.
#pragma once

#include <string_view>

namespace diffserve {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view reason);

}  // namespace diffserve

#define DS_CHECK(condition, reason)                                       \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::diffserve::CheckFailed(__FILE__, __LINE__, #condition, (reason)); \
  } while (false)
