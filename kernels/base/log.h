// One line an event on stderr: "2026-01-31T12:00:00.123Z INFO event key=value ...". Never prompt or
// output text. Thread safety: all functions may be called from any thread.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace diffserve {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void SetLogLevel(LogLevel level);

// Values with spaces, quotes or control characters are written quoted and escaped.
using LogFields = std::initializer_list<std::pair<std::string_view, std::string>>;
void Log(LogLevel level, std::string_view event, LogFields fields = {});

}  // namespace diffserve
