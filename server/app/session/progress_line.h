// SPDX-License-Identifier: Apache-2.0
// ProgressLine: reports the progress of a load, or of other work, on stderr. On a terminal it is
// one line, rewritten a few times per second and removed at the end; otherwise it prints a line now
// and then. Thread safety: one thread.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>

#include "models/load_progress.h"

namespace diffserve {

class ProgressLine {
 public:
  // The form of a line without a terminal.
  enum class Form { kPlain, kLog };

  explicit ProgressLine(Form form, int descriptor = STDERR_FILENO);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Tell(const char* doing, uint64_t done_bytes, uint64_t all_bytes);
  // The same of other work, whose state is `text`, in the plain form.
  void Show(const std::string& text);
  // Calls Tell; this outlives it.
  LoadProgress::Report report() {
    return [this](const char* doing, uint64_t done, uint64_t all) { Tell(doing, done, all); };
  }
  LoadProgress::Pace pace() const;

 private:
  void Write(const std::string& text) const;

  const Form form_;
  const int descriptor_;
  const bool to_terminal_;
  bool is_shown_ = false;  // on the terminal
};

}  // namespace diffserve
