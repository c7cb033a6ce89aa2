// SPDX-License-Identifier: Apache-2.0
#include "server/router/children/pipe_lines.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace diffserve {

bool PipeLines::Read(int descriptor, const std::function<void(std::string_view line)>& take) {
  char bytes[4096];
  for (;;) {
    const ssize_t n = read(descriptor, bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) {
      if (!partial_.empty()) take(partial_);
      partial_.clear();
      return false;
    }
    partial_.append(bytes, static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1)
      take(std::string_view(partial_).substr(begin, end - begin));
    partial_.erase(0, begin);
    if (partial_.size() > kMaxLineBytes) {
      take(partial_);
      partial_.clear();
    }
  }
}

}  // namespace diffserve
