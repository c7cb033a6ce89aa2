// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/progress_line.h"

#include "kernels/process/log.h"
#include "server/app/session/memory_plan.h"

namespace diffserve {
namespace {

constexpr std::chrono::milliseconds kRewritten{250};
constexpr char kWipe[] = "\r\x1b[K";  // clears the terminal's line

}  // namespace

ProgressLine::ProgressLine(Form form, int descriptor)
    : form_(form), descriptor_(descriptor), to_terminal_(isatty(descriptor) == 1) {}

ProgressLine::~ProgressLine() {
  if (is_shown_) Write(kWipe);
}

LoadProgress::Pace ProgressLine::pace() const {
  LoadProgress::Pace pace;
  if (to_terminal_) pace.then = kRewritten;
  return pace;
}

void ProgressLine::Tell(const char* doing, uint64_t done_bytes, uint64_t all_bytes) {
  if (form_ == Form::kLog && (!to_terminal_ || CurrentLogFormat() == LogFormat::kJson)) {
    Log(LogLevel::kInfo, "load_progress",
        {{"doing", doing},
         {"done_bytes", std::to_string(done_bytes)},
         {"all_bytes", std::to_string(all_bytes)}});
    return;
  }
  Show(std::string(doing) + ": " + MiB(static_cast<double>(done_bytes)) + " of " +
       MiB(static_cast<double>(all_bytes)));
}

void ProgressLine::Show(const std::string& text) {
  is_shown_ = to_terminal_;
  Write(to_terminal_ ? kWipe + text : text + "\n");
}

// Text that a closed or full stderr does not accept is lost.
void ProgressLine::Write(const std::string& text) const {
  [[maybe_unused]] const ssize_t written = write(descriptor_, text.data(), text.size());
}

}  // namespace diffserve
