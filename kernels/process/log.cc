// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "kernels/process/line_writer.h"
#include "kernels/process/terminal_text.h"

namespace diffserve {
namespace {

constexpr std::string_view kMessage = "message";  // the event of what is none, and its field

std::atomic<LogLevel> minimum_level{LogLevel::kInfo};
std::atomic<LogFormat> log_format{LogFormat::kText};
std::atomic<uint64_t> dropped_by_callers{0};
std::mutex writer_mutex;
std::shared_ptr<LineWriter> writer;  // nullptr: each caller writes

std::atomic<const LineWriter*> current{nullptr};  // the same, for a signal handler

std::shared_ptr<LineWriter> Writer() {
  std::lock_guard lock(writer_mutex);
  return writer;
}

std::string_view NameOf(LogLevel level) {
  constexpr std::string_view kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
  return kNames[static_cast<int>(level)];
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

std::string TextLine(LogLevel level, std::string_view event, LogFields fields) {
  std::string line = std::string(LogTimeNow().text) + " ";
  line += NameOf(level);
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

// `text` becomes valid UTF-8 without control characters but the line feed and the tab.
void AppendString(std::string& line, std::string_view text) {
  line += '"';
  for (const char c : ShownOnTerminal(text)) {
    if (c == '"' || c == '\\') line += '\\';
    if (c == '\n' || c == '\t') {
      line += c == '\n' ? "\\n" : "\\t";
    } else {
      line += c;
    }
  }
  line += '"';
}

void AppendMember(std::string& line, std::string_view key, std::string_view value) {
  line += line.empty() ? '{' : ',';
  AppendString(line, key);
  line += ':';
  AppendString(line, value);
}

std::string JsonLine(LogLevel level, std::string_view event, LogFields fields) {
  std::string line;
  AppendMember(line, "time", LogTimeNow().text);
  AppendMember(line, "level", NameOf(level));
  AppendMember(line, "event", event);
  for (const auto& [key, value] : fields) AppendMember(line, key, value);
  return line += "}\n";
}

std::string Line(LogLevel level, std::string_view event, LogFields fields) {
  return CurrentLogFormat() == LogFormat::kJson ? JsonLine(level, event, fields)
                                                : TextLine(level, event, fields);
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
void SetLogFormat(LogFormat format) { log_format = format; }
LogFormat CurrentLogFormat() { return log_format.load(std::memory_order_relaxed); }

// Without the C library's conversion, which takes a lock.
LogTime LogTimeNow() {
  using std::chrono::floor;
  const auto now = floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto day = floor<std::chrono::days>(now);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(now - day);
  LogTime out = {"0000-00-00T00:00:00.000Z"};
  const auto put = [&out](int last, int64_t number) {
    for (char* digit = out.text + last; number > 0; number /= 10)
      *digit-- = static_cast<char>('0' + number % 10);
  };
  put(3, static_cast<int>(date.year()));
  put(6, static_cast<unsigned>(date.month()));
  put(9, static_cast<unsigned>(date.day()));
  put(12, time.hours().count());
  put(15, time.minutes().count());
  put(18, time.seconds().count());
  put(22, time.subseconds().count());
  return out;
}

void Log(LogLevel level, std::string_view event, LogFields fields) {
  if (level < minimum_level.load(std::memory_order_relaxed)) return;
  Write(Line(level, event, fields));
}

std::string MessageLine(LogLevel level, std::string_view text) {
  if (CurrentLogFormat() == LogFormat::kJson)
    return JsonLine(level, kMessage, {{kMessage, std::string(text)}});
  return ShownOnTerminal("diffserve: " + std::string(text)) + "\n";
}

void LogMessage(LogLevel level, std::string_view text) { Write(MessageLine(level, text)); }

void LogLineOfModel(std::string_view model, std::string_view line) {
  if (CurrentLogFormat() == LogFormat::kText)
    return Write(ShownOnTerminal(std::string(line) + " model=" + std::string(model)) + "\n");
  if (!line.starts_with("{\"time\":") || !line.ends_with('}')) {
    return Write(JsonLine(LogLevel::kWarning, kMessage,
                          {{kMessage, std::string(line)}, {"model", std::string(model)}}));
  }
  std::string with_model(line.substr(0, line.size() - 1));
  AppendMember(with_model, "model", model);
  Write(with_model + "}\n");
}

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
