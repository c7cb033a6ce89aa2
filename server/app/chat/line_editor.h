// SPDX-License-Identifier: Apache-2.0
// LineEditor: reads a line at the terminal, with libedit's keys, UTF-8 and history. It owns the
// terminal's settings while it reads; the history is in memory.
// Thread safety: one thread, and one editor at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace diffserve {

class LineEditor {
 public:
  enum class End { kLine, kInterrupted, kEndOfInput };  // Enter; Ctrl-C; Ctrl-D on an empty line
  struct Line {
    End end = End::kEndOfInput;
    std::string text;  // without a line feed; empty unless it was entered
  };

  explicit LineEditor(std::string prompt);  // printable, without line feeds
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  Line Read();

  // Restores the terminal's settings. May be called from any thread, also while a line is read, for
  // an exit without destructors.
  void RestoreTerminal() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
