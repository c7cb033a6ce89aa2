// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/crash_report.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <typeinfo>

#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"

namespace diffserve {
namespace {

constexpr int kFatalSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr int kMaxFrames = 40;
constexpr int kWaitsForLog = 40;  // of 5 ms each: time for earlier log lines to be written
constexpr int kWaitForRoomMs = 500;
constexpr size_t kLineBytes = 4096;  // a pipe accepts this much atomically

std::atomic<bool> is_installed{false};
std::atomic_flag is_reporting = ATOMIC_FLAG_INIT;
const char* build_version = "";
const char* build_commit = "";
std::atomic<uint64_t> last_step{0};
std::atomic<int> step_sequences{0}, step_tokens{0};
char failed_check[512];  // empty: no failed check
std::atomic<bool> memory_ran_out{false};
std::atomic<const char*> uncaught{nullptr};  // the name of the exception's type

// A line of the log of bounded length that allocates nothing: "diffserve: crashed key=value ...",
// or a JSON object of strings.
class Line {
 public:
  Line() {
    if (!is_json_) {
      *this << "diffserve: crashed";
      return;
    }
    *this << "{\"time\":\"" << LogTimeNow().text << "\",\"level\":\"ERROR\",\"event\":\"crashed\"";
  }
  // Begins a field, whose value follows. `quote`: around the value in the text form.
  Line& Begin(std::string_view key, std::string_view quote = "") {
    if (is_json_) return *this << ",\"" << key << "\":\"";
    return *this << " " << key << "=" << quote;
  }
  Line& End(std::string_view quote = "") { return *this << (is_json_ ? "\"" : quote); }
  void Field(std::string_view key, std::string_view value, std::string_view quote = "") {
    Begin(key, quote);
    for (const char& c : value) {
      if (is_json_ && (c == '"' || c == '\\')) *this << "\\";
      *this << std::string_view(&c, 1);
    }
    End(quote);
  }
  void Field(std::string_view key, uint64_t value) { Begin(key).Number(value).End(); }
  Line& operator<<(std::string_view text) {
    const size_t count = std::min(text.size(), kLineBytes - kEndBytes - size_);
    std::memcpy(text_ + size_, text.data(), count);
    size_ += count;
    return *this;
  }
  Line& Number(uint64_t value, unsigned base = 10) {
    char digits[24];
    char* begin = digits + sizeof(digits);
    do {
      *--begin = "0123456789abcdef"[value % base];
    } while ((value /= base) > 0);
    return *this << std::string_view(begin, static_cast<size_t>(digits + sizeof(digits) - begin));
  }
  void WriteTo(int descriptor) {
    if (is_json_) text_[size_++] = '}';
    text_[size_++] = '\n';
    pollfd room = {descriptor, POLLOUT, 0};
    if (poll(&room, 1, kWaitForRoomMs) <= 0) return;
    [[maybe_unused]] const ssize_t written = write(descriptor, text_, size_);
  }

 private:
  static constexpr size_t kEndBytes = 2;
  const bool is_json_ = CurrentLogFormat() == LogFormat::kJson;
  char text_[kLineBytes];
  size_t size_ = 0;
};

void WaitForLog() {
  const timespec pause = {.tv_sec = 0, .tv_nsec = 5'000'000};
  for (int i = 0; i < kWaitsForLog && PendingLogLines() > 0; ++i) nanosleep(&pause, nullptr);
}

void AddThread(Line& line) {
  ForEachThread([&, own = gettid()](const char* name, const char* where, pid_t thread) {
    if (thread != own) return;
    line.Field("thread", name);
    line.Field("activity", where, "\"");
  });
}

void AddBacktrace(Line& line) {
  void* frames[kMaxFrames];
  const int count = backtrace(frames, kMaxFrames);
  line.Begin("backtrace");
  for (int i = 0; i < count; ++i) {
    Dl_info info{};
    const auto address = reinterpret_cast<uint64_t>(frames[i]);
    const bool is_known = dladdr(frames[i], &info) != 0 && info.dli_fname != nullptr;
    const char* const slash = is_known ? std::strrchr(info.dli_fname, '/') : nullptr;
    line << (i == 0 ? "" : ",")
         << (slash != nullptr ? slash + 1
             : is_known       ? info.dli_fname
                              : "")
         << "+0x";
    line.Number(address - reinterpret_cast<uint64_t>(info.dli_fbase), 16);
  }
  line.End();
}

void Report(int signal) {
  Line line;
  line.Field("signal", static_cast<uint64_t>(signal));
  line.Field("version", build_version);
  line.Field("commit", build_commit);
  AddThread(line);
  line.Field("step", last_step);
  line.Field("sequences", static_cast<uint64_t>(step_sequences.load()));
  line.Field("tokens", static_cast<uint64_t>(step_tokens.load()));
  if (failed_check[0] != '\0') line.Field("check", failed_check, "\"");
  if (memory_ran_out) line.Field("reason", "out of memory", "\"");
  if (uncaught != nullptr) line.Field("uncaught", uncaught.load());
  AddBacktrace(line);
  WaitForLog();
  line.WriteTo(STDERR_FILENO);
}

void OnFatalSignal(int signal) {
  if (!is_reporting.test_and_set()) {
    Report(signal);
  } else {
    for (int i = 0; i < kWaitsForLog; ++i) {  // another thread's report comes first
      const timespec pause = {.tv_sec = 0, .tv_nsec = 25'000'000};
      nanosleep(&pause, nullptr);
    }
  }
  struct sigaction by_default{};
  by_default.sa_handler = SIG_DFL;
  sigaction(signal, &by_default, nullptr);
  raise(signal);  // delivered when the handler returns
}

// The text of an exception might quote a request, so the report has its type.
void OnTerminate() {
  if (const std::type_info* const type = abi::__cxa_current_exception_type())
    uncaught = type->name();
  std::abort();
}

void OnOutOfMemory() {
  memory_ran_out = true;
  std::abort();
}

}  // namespace

void InstallCrashReport(const char* version, const char* commit) {
  build_version = version;
  build_commit = commit;
  void* frame;
  backtrace(&frame, 1);  // the first call loads a library
  struct sigaction action{};
  action.sa_handler = OnFatalSignal;
  action.sa_flags = SA_ONSTACK;
  for (int signal : kFatalSignals) sigaction(signal, &action, nullptr);
  std::set_terminate(OnTerminate);
  is_installed = true;
}

void CrashWhenMemoryRunsOut() { std::set_new_handler(OnOutOfMemory); }

void NoteStep(uint64_t step, int num_sequences, int num_tokens) {
  last_step.store(step, std::memory_order_relaxed);
  step_sequences.store(num_sequences, std::memory_order_relaxed);
  step_tokens.store(num_tokens, std::memory_order_relaxed);
}

bool NoteFailedCheck(const char* file, int line, const char* condition, std::string_view reason) {
  if (!is_installed) return false;
  char* to = failed_check;
  char number[16];
  char* const last = failed_check + sizeof(failed_check) - 1;
  const auto add = [&](std::string_view text) {
    const size_t count = std::min(text.size(), static_cast<size_t>(last - to));
    std::memcpy(to, text.data(), count);
    to += count;
  };
  char* digit = number + sizeof(number);
  for (int rest = line; rest > 0; rest /= 10) *--digit = static_cast<char>('0' + rest % 10);
  add(file);
  add(":");
  add({digit, static_cast<size_t>(number + sizeof(number) - digit)});
  for (std::string_view text :
       {std::string_view(": "), std::string_view(condition), std::string_view(": "), reason})
    add(text);
  *to = '\0';
  return true;
}

}  // namespace diffserve
