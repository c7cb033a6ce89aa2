// SPDX-License-Identifier: Apache-2.0
// Logs one line per event on stderr: "2026-01-31T12:00:00.123Z INFO event key=value ...", or a JSON
// object with the members time, level, event and the fields, all of them strings. Never prompt or
// output text. What a terminal would obey is shown as symbols (terminal_text.h).
//
// Thread safety: all functions may be called from any thread.
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

enum class LogFormat { kText, kJson };
void SetLogFormat(LogFormat format);  // of all later lines; kText at first
LogFormat CurrentLogFormat();         // safe in a signal handler

// Values with spaces, quotes or control characters are quoted and escaped.
using LogFields = std::initializer_list<std::pair<std::string_view, std::string>>;
void Log(LogLevel level, std::string_view event, LogFields fields = {});
// Logs what is no event, such as why the program ends, whatever the minimum level: "diffserve:
// TEXT", in JSON the event "message".
void LogMessage(LogLevel level, std::string_view text);
// LogMessage's line with its line feed, for a caller that writes it itself.
std::string MessageLine(LogLevel level, std::string_view text);
// Passes on a line of a model's process, which has the same format, with the field model=NAME. A
// line that is no JSON object, such as a library's, becomes a message.
void LogLineOfModel(std::string_view model, std::string_view line);

// The time of a line, "2026-01-31T12:00:00.123Z". Safe in a signal handler.
struct LogTime {
  char text[25];
};
LogTime LogTimeNow();

// While one lives, a thread writes the lines (line_writer.h), so a stalled reader of stderr never
// blocks a caller. Before and after, each caller writes its own lines. At most one exists; the
// program creates it first.
class LogThread {
 public:
  explicit LogThread(int descriptor);
  ~LogThread();  // writes what is left, within a short limit
  LogThread(const LogThread&) = delete;
  LogThread& operator=(const LogThread&) = delete;
};

// For exits without destructors. False if lines are left after `limit`.
bool FlushLog(std::chrono::milliseconds limit);
// Lines that the thread has not written yet. Safe in a signal handler.
size_t PendingLogLines();
// Lines lost because the reader stalled or a write failed.
uint64_t DroppedLogLines();

}  // namespace diffserve
