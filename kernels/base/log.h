// One line an event on stderr: "2026-01-31T12:00:00.123Z INFO event key=value ...". Never prompt or
// output text. Thread safety: all functions may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace diffserve {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void SetLogLevel(LogLevel level);

// Values with spaces, quotes or control characters are written quoted and escaped. Never throws: a
// line for which there is no memory is dropped.
using LogFields = std::initializer_list<std::pair<std::string_view, std::string>>;
void Log(LogLevel level, std::string_view event, LogFields fields = {});
// A line as it is, in order with the others.
void LogPlainLine(std::string_view text);

// While it lives, a thread writes the lines (line_writer.h), so that whoever reads stderr holds no
// caller; before and after, each caller writes its own. One at a time; the program makes it first.
class LogThread {
 public:
  explicit LogThread(int descriptor);
  ~LogThread();  // writes what is left, as far as a short limit allows
  LogThread(const LogThread&) = delete;
  LogThread& operator=(const LogThread&) = delete;
};

// For an end without destructors: false if lines are left after `limit`.
bool FlushLog(std::chrono::milliseconds limit);
// Lines that the thread has not written yet. Also from a signal's handler.
size_t PendingLogLines();
// Lines lost because nobody read them or nobody could take them.
uint64_t DroppedLogLines();

}  // namespace diffserve
