// SPDX-License-Identifier: Apache-2.0
// `diffserve run-batch`: answers the requests of a file in this process, through the routes of
// serve.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/process/crash_report.h"
#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"
#include "models/regular_file.h"
#include "server/app/batch/batch_journal.h"
#include "server/app/batch/batch_runner.h"
#include "server/app/batch/line_reader.h"
#include "server/app/commands/commands.h"
#include "server/app/commands/loaded_server.h"
#include "server/app/session/progress_line.h"
#include "server/app/stop_signals.h"

namespace diffserve {
namespace {

using std::chrono::steady_clock;

constexpr size_t kMaxBesideBodyBytes = 64 << 10;  // the other members of a line
constexpr float kAnyQueueWait = 1e8f;  // seconds: no request is refused because others run

constexpr std::string_view kStandardStream = "-";

// The open input: a file, a pipe, or standard input.
class InputFile {
 public:
  static Result<InputFile> Open(const std::string& path) {
    struct stat status{};
    const bool is_pipe = stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) &&
                         !S_ISDIR(status.st_mode) && !S_ISBLK(status.st_mode);
    if (path != kStandardStream && !is_pipe) {
      const Result<int> descriptor = OpenRegularFile(path);
      if (!descriptor.ok()) return InvalidArgument("--input " + descriptor.status().message());
      return InputFile(*descriptor);
    }
    const int descriptor = path == kStandardStream ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                                   : open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor >= 0) return InputFile(descriptor);
    return InvalidArgument("--input " + path + ": cannot be opened: " + std::strerror(errno));
  }
  InputFile(InputFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ~InputFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  int descriptor() const { return descriptor_; }
  uint64_t bytes() const { return static_cast<uint64_t>(Stat().st_size); }
  // Whether it is the file at `path`.
  bool Is(const std::string& path) const {
    struct stat other{};
    const struct stat own = Stat();
    return stat(path.c_str(), &other) == 0 && own.st_dev == other.st_dev &&
           own.st_ino == other.st_ino;
  }

 private:
  explicit InputFile(int descriptor) : descriptor_(descriptor) {}
  struct stat Stat() const {
    struct stat status{};
    fstat(descriptor_, &status);
    return status;
  }
  int descriptor_;
};

std::string DurationText(double seconds) {
  const auto whole = static_cast<long long>(seconds);
  char text[40];
  std::snprintf(text, sizeof(text), "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                whole % 60);
  return text;
}

std::string OneDecimal(double number) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.1f", number);
  return text;
}

// The lines on stderr while requests run, and the last one.
class BatchReport {
 public:
  BatchReport(uint64_t input_bytes, Engine& engine)
      : input_bytes_(static_cast<double>(input_bytes)),
        engine_(engine),
        line_(std::in_place, ProgressLine::Form::kPlain),
        next_(begin_ + line_->pace().first) {}

  void Update(const BatchCounts& counts) {
    const steady_clock::time_point now = steady_clock::now();
    if (now < next_) return;
    next_ = now + line_->pace().then;
    line_->Show(DoneText(counts) + LeftText(counts));
  }
  void End(const BatchCounts& counts) {
    line_.reset();
    const EngineStats stats = engine_.Snapshot();
    LogMessage(LogLevel::kInfo, DoneText(counts) + ", " + std::to_string(stats.prompt_tokens) +
                                    " prompt and " + std::to_string(stats.generation_tokens) +
                                    " generated tokens in " + OneDecimal(Seconds()) + " s");
  }

 private:
  double Seconds() const {
    return std::chrono::duration<double>(steady_clock::now() - begin_).count();
  }
  std::string DoneText(const BatchCounts& counts) const {
    const auto tokens = static_cast<double>(engine_.Snapshot().generation_tokens);
    return std::to_string(counts.answered) + " answered (" + std::to_string(counts.errors) +
           " errors), " + std::to_string(counts.skipped) + " answered before, " +
           OneDecimal(tokens / Seconds()) + " tokens/s";
  }
  // By the input's bytes, because its lines are not known before they are read.
  std::string LeftText(const BatchCounts& counts) const {
    const auto answered = static_cast<double>(counts.bytes_answered);
    const double left = input_bytes_ - answered - static_cast<double>(counts.bytes_skipped);
    if (answered == 0 || left <= 0) return "";
    return ", " + DurationText(Seconds() * left / answered) + " left";
  }

  const double input_bytes_;
  Engine& engine_;
  const steady_clock::time_point begin_ = steady_clock::now();
  std::optional<ProgressLine> line_;
  steady_clock::time_point next_;
};

// The first signal lets running requests end, a second one ends the process.
Status RunUntilSignal(BatchRunner& runner) {
  bool stopping = false;
  const EndsOnSignal ends_on_signal("running requests", [&](int) {
    if (std::exchange(stopping, true)) return false;
    LogMessage(LogLevel::kInfo, "no further request starts; a second signal ends at once");
    runner.Stop();
    return true;
  });
  return runner.Run();
}

}  // namespace

Status RunBatch(const SessionOptions& options, const ServeOptions& serve, const BatchOptions& batch,
                const ExecutorWrapper& wrap) {
  const NamedThread named("main", "the start");
  BlockStopSignals();
  std::optional<EndsOnSignal> ends_on_signal(std::in_place, "loading");
  const Result<InputFile> input = InputFile::Open(batch.input);
  if (!input.ok()) return input.status();
  if (batch.output == kStandardStream) {
    return NotAllowed("--output is -", "a file, from which the run can continue", "--output");
  }
  if (input->Is(batch.output))
    return InvalidArgument("--output is the file of --input, " + batch.input, "--output");
  const Result<std::unique_ptr<BatchJournal>> opened = BatchJournal::Open(batch.output);
  if (!opened.ok()) return opened.status();
  BatchJournal& journal = **opened;
  SessionOptions session = options;
  session.engine.max_queue_wait_s = kAnyQueueWait;
  const Result<LoadedServer> loaded = LoadServer(session, serve, wrap, ProgressLine::Form::kPlain);
  if (!loaded.ok()) return loaded.status();
  Server& server = *loaded->server;
  CrashWhenMemoryRunsOut();
  ends_on_signal.reset();

  BatchReport report(input->bytes(), server.engine());
  BatchRunnerOptions runner_options;
  runner_options.max_body_bytes = static_cast<size_t>(serve.max_body_size.bytes);
  LineReader lines(batch.input, input->descriptor(),
                   runner_options.max_body_bytes + kMaxBesideBodyBytes);
  // All that run may end in one step, and as many must then be ready to start.
  runner_options.max_in_flight = 2 * static_cast<size_t>(server.engine().options().MaxRunning());
  BatchRunner runner(runner_options, server.routes().Service().serve, lines, journal,
                     [&](const BatchCounts& counts) { report.Update(counts); });
  const Status ended = RunUntilSignal(runner);
  const Status synced = journal.Sync();
  report.End(runner.counts());
  if (!ended.ok() && server.engine().failure().code() == StatusCode::kDeviceLost)
    return Status(StatusCode::kDeviceLost, ended.message());
  DS_RETURN_IF_ERROR(ended);
  if (runner.num_unmatched() > 0) {
    Log(LogLevel::kWarning, "answers_without_request",
        {{"file", batch.output}, {"count", std::to_string(runner.num_unmatched())}});
  }
  return synced;
}

}  // namespace diffserve
