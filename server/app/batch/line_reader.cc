// SPDX-License-Identifier: Apache-2.0
#include "server/app/batch/line_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace diffserve {
namespace {

constexpr size_t kReadBytes = 256 << 10;

}  // namespace

Status LineReader::Fill() {
  buffer_.resize(kReadBytes);
  at_ = 0;
  ssize_t count = 0;
  do {
    count = pread(descriptor_, buffer_.data(), buffer_.size(), static_cast<off_t>(read_));
  } while (count < 0 && errno == EINTR);
  buffer_.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  read_ += buffer_.size();
  return count >= 0 ? Status()
                    : InvalidArgument(path_ + ": cannot be read: " + std::strerror(errno));
}

Result<std::optional<TextLine>> LineReader::Next() {
  TextLine line;
  for (;;) {
    if (at_ == buffer_.size()) {
      DS_RETURN_IF_ERROR(Fill());
      if (buffer_.empty()) break;
    }
    const size_t end = buffer_.find('\n', at_);
    const std::string_view piece = std::string_view(buffer_).substr(at_, end - at_);
    line.is_cut = line.is_cut || piece.size() > max_bytes_ - line.text.size();
    line.text += piece.substr(0, max_bytes_ - line.text.size());
    at_ += piece.size();
    line.bytes += piece.size();
    if (end == std::string::npos) continue;
    ++at_;
    ++line.bytes;
    line.number = ++last_number_;
    return std::optional<TextLine>(std::move(line));
  }
  if (line.bytes == 0) return std::optional<TextLine>();
  line.is_ended = false;
  line.number = ++last_number_;
  return std::optional<TextLine>(std::move(line));
}

}  // namespace diffserve
