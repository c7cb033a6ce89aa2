// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>

#include "kernels/base/line_writer.h"
#include "kernels/base/terminal_text.h"

namespace diffserve {
namespace {

std::atomic<LogLevel> minimum_level{LogLevel::kInfo};
std::atomic<uint64_t> dropped_by_callers{0};
std::mutex writer_mutex;
std::shared_ptr<LineWriter> writer;  // nullptr: each caller writes

std::atomic<const LineWriter*> current{nullptr};  // the same, for a signal handler

std::shared_ptr<LineWriter> Writer() {
  std::lock_guard lock(writer_mutex);
  return writer;
}

constexpr std::string_view kLevelNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};

std::string Timestamp() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc;
  gmtime_r(&seconds, &utc);
  char text[96];
  std::snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900,
                utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                static_cast<int>(milliseconds));
  return text;
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

void AppendValue(std::string& line, std::string_view value) {
  const bool plain = !value.empty() && value.find_first_of(" \"\\=") == std::string_view::npos &&
                     std::none_of(value.begin(), value.end(), IsControl);
  if (plain) {
    line += value;
    return;
  }
  line += '"';
  for (char c : value) {
    if (c == '"' || c == '\\') line += '\\';
    line += IsControl(c) ? ' ' : c;
  }
  line += '"';
}

std::string Line(LogLevel level, std::string_view event, LogFields fields) {
  std::string line = Timestamp() + " ";
  line += kLevelNames[static_cast<int>(level)];
  line += ' ';
  line += event;
  for (const auto& [key, value] : fields) {
    line += ' ';
    line += key;
    line += '=';
    AppendValue(line, value);
  }
  return ShownOnTerminal(line += '\n');
}

std::string GapLine(uint64_t lines) {
  return Line(LogLevel::kWarning, "log_lines_dropped", {{"lines", std::to_string(lines)}});
}

void Write(std::string line) {
  if (const std::shared_ptr<LineWriter> thread = Writer()) return thread->Push(std::move(line));
  // One write call keeps the line whole.
  const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  if (written < std::ssize(line)) dropped_by_callers.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

void SetLogLevel(LogLevel level) { minimum_level = level; }

void Log(LogLevel level, std::string_view event, LogFields fields) {
  if (level < minimum_level.load(std::memory_order_relaxed)) return;
  Write(Line(level, event, fields));
}

void LogPlainLine(std::string_view text) { Write(ShownOnTerminal(text) + "\n"); }

LogThread::LogThread(int descriptor) {
  auto made = std::make_shared<LineWriter>(
      LineWriter::Options{.descriptor = descriptor, .gap_line = GapLine});
  std::lock_guard lock(writer_mutex);
  writer = std::move(made);
  current = writer.get();
}

LogThread::~LogThread() {
  std::shared_ptr<LineWriter> ended;
  {
    std::lock_guard lock(writer_mutex);
    current = nullptr;
    ended = std::move(writer);
    writer = nullptr;
  }
}

bool FlushLog(std::chrono::milliseconds limit) {
  const std::shared_ptr<LineWriter> thread = Writer();
  return thread == nullptr || thread->Flush(limit);
}

size_t PendingLogLines() {
  const LineWriter* const thread = current;
  return thread == nullptr ? 0 : thread->pending();
}

uint64_t DroppedLogLines() {
  const std::shared_ptr<LineWriter> thread = Writer();
  return dropped_by_callers.load(std::memory_order_relaxed) + (thread ? thread->dropped() : 0);
}

}  // namespace diffserve
