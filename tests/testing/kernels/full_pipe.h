// SPDX-License-Identifier: Apache-2.0
// FullPipe: a pipe filled until no more bytes fit, with no reader until the test reads it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>

namespace diffserve::testing {

class FullPipe {
 public:
  FullPipe() {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    SetNonBlocking(ends_[1], true);
    while (write(ends_[1], "x", 1) == 1) ++filled_;
    EXPECT_EQ(errno, EAGAIN);
    SetNonBlocking(ends_[1], false);
  }
  ~FullPipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;

  int input() const { return ends_[1]; }
  // Reads the bytes after the filling, up to `last`.
  std::string ReadUntil(const std::string& last) {
    std::string text;
    char byte = 0;
    while (!text.ends_with(last) && read(ends_[0], &byte, 1) == 1) {
      if (filled_ > 0) {
        --filled_;
      } else {
        text += byte;
      }
    }
    return text;
  }

 private:
  static void SetNonBlocking(int descriptor, bool on) {
    const int flags = fcntl(descriptor, F_GETFL);
    fcntl(descriptor, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
  }

  int ends_[2] = {-1, -1};
  size_t filled_ = 0;
};

}  // namespace diffserve::testing
