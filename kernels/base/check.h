// DS_CHECK: an invariant of our own. It is active in every build, tells file, line and the reason
// on stderr (crash_report.h), and aborts.
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
