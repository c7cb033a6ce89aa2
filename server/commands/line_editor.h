// LineEditor: a line that a person writes at the terminal, with the keys, the UTF-8 and the history
// of libedit. It owns the terminal's settings while a line is read; the history is in memory.
// Thread safety: one thread. One at a time.
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

  // Gives the terminal the settings that it had before. From any thread, also while a line is read:
  // for an end without destructors.
  void RestoreTerminal() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
