// SPDX-License-Identifier: Apache-2.0
// UnixSocketFile: the file of a Unix socket that a server listens on. It replaces the file of a
// socket that no process listens on any more, and refuses every other file at its path.
// Thread safety: one thread at a time.
#pragma once

#include <sys/types.h>

#include <string>

#include "kernels/base/status.h"

namespace diffserve {

// Error: `path` is longer than a socket's address can be.
Status CheckUnixSocketPath(const std::string& path);

class UnixSocketFile {
 public:
  UnixSocketFile() = default;
  ~UnixSocketFile() { Remove(); }
  UnixSocketFile(const UnixSocketFile&) = delete;
  UnixSocketFile& operator=(const UnixSocketFile&) = delete;

  // Binds the socket `fd` to `path`; only the user of this process may connect to it. Error: a
  // server listens there, the file is not a socket, or the system's message. REQUIRES: not called
  // before; `fd` does not listen yet.
  Status Bind(int fd, const std::string& path);
  // Removes the file, unless another one has taken its place. Idempotent.
  void Remove();

 private:
  std::string path_;  // empty: there is no file
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace diffserve
