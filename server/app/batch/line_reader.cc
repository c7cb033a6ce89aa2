// SPDX-License-Identifier: Apache-2.0
#include "server/app/batch/line_reader.h"

#include <poll.h>
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

LineReader::LineReader(std::string path, int descriptor, size_t max_bytes)
    : path_(std::move(path)),
      descriptor_(descriptor),
      max_bytes_(max_bytes),
      read_to_(std::max<off_t>(0, lseek(descriptor, 0, SEEK_CUR))) {}

// False if a pipe has nothing now.
Result<bool> LineReader::Fill() {
  pollfd ready = {.fd = descriptor_, .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, 0) == 0) return false;
  buffer_.resize(kReadBytes);
  at_ = 0;
  ssize_t count = 0;
  do {
    count = pread(descriptor_, buffer_.data(), buffer_.size(), read_to_);
    if (count < 0 && errno == ESPIPE) count = read(descriptor_, buffer_.data(), buffer_.size());
  } while (count < 0 && errno == EINTR);
  buffer_.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  read_to_ += static_cast<off_t>(buffer_.size());
  ended_ = count == 0;
  if (count >= 0) return true;
  return InvalidArgument(path_ + ": cannot be read: " + std::strerror(errno));
}

TextLine LineReader::TakeLine() {
  line_.number = ++last_number_;
  return std::exchange(line_, {});
}

Result<std::optional<TextLine>> LineReader::Next() {
  while (!ended_) {
    if (at_ == buffer_.size()) {
      const Result<bool> filled = Fill();
      if (!filled.ok()) return filled.status();
      if (!*filled) return std::optional<TextLine>();
      continue;
    }
    const size_t end = buffer_.find('\n', at_);
    const std::string_view piece = std::string_view(buffer_).substr(at_, end - at_);
    line_.is_cut = line_.is_cut || piece.size() > max_bytes_ - line_.text.size();
    line_.text += piece.substr(0, max_bytes_ - line_.text.size());
    at_ += piece.size();
    line_.bytes += piece.size();
    if (end == std::string::npos) continue;
    ++at_;
    ++line_.bytes;
    return std::optional<TextLine>(TakeLine());
  }
  if (line_.bytes == 0) return std::optional<TextLine>();
  line_.is_ended = false;
  return std::optional<TextLine>(TakeLine());
}

}  // namespace diffserve
