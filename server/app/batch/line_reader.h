// SPDX-License-Identifier: Apache-2.0
// LineReader: the lines of a file of any size or of a pipe, one after another, with bounded memory.
// It never waits for a pipe.
// Thread safety: one thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/status.h"

namespace diffserve {

struct TextLine {
  std::string text;      // without its end; at most `max_bytes` of LineReader
  uint64_t number = 0;   // from 1
  uint64_t bytes = 0;    // in the file, with its end
  bool is_ended = true;  // false: the file ends within the line
  bool is_cut = false;   // the file has more of it than `text`
};

class LineReader {
 public:
  // `descriptor`: of `path`, read from its position; it outlives this.
  LineReader(std::string path, int descriptor, size_t max_bytes);

  // nullopt after the last line, or if a pipe has no whole line yet. Error: one line with the path
  // and the system's reason.
  Result<std::optional<TextLine>> Next();
  bool ended() const { return ended_; }
  int descriptor() const { return descriptor_; }  // readable when a pipe has more

 private:
  Result<bool> Fill();
  TextLine TakeLine();

  const std::string path_;
  const int descriptor_;
  const size_t max_bytes_;
  std::string buffer_;  // read and not returned yet, from at_
  size_t at_ = 0;
  off_t read_to_;  // position in the file
  bool ended_ = false;
  TextLine line_;  // as far as it is read
  uint64_t last_number_ = 0;
};

}  // namespace diffserve
