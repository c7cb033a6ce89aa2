// SPDX-License-Identifier: Apache-2.0
// LineReader: the lines of a file of any size, one after another, with bounded memory.
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

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
  // `descriptor`: the regular file at `path`, read from its first byte; it outlives this.
  LineReader(std::string path, int descriptor, size_t max_bytes)
      : path_(std::move(path)), descriptor_(descriptor), max_bytes_(max_bytes) {}

  // nullopt after the last line. Error: one line with the path and the system's reason.
  Result<std::optional<TextLine>> Next();

 private:
  Status Fill();

  const std::string path_;
  const int descriptor_;
  const size_t max_bytes_;
  std::string buffer_;  // read and not returned yet, from at_
  size_t at_ = 0;
  uint64_t read_ = 0;  // bytes of the file
  uint64_t last_number_ = 0;
};

}  // namespace diffserve
