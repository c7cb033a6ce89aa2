// SPDX-License-Identifier: Apache-2.0
// PipeLines: splits the bytes of a pipe into lines. Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace diffserve {

class PipeLines {
 public:
  static constexpr size_t kMaxLineBytes = 16 << 10;  // a longer line is split

  // Reads what is there, without waiting, and calls `take` for each line without its line feed.
  // False once the other end is closed; the last line may have no line feed.
  bool Read(int descriptor, const std::function<void(std::string_view line)>& take);

 private:
  std::string partial_;
};

}  // namespace diffserve
