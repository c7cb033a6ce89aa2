// SPDX-License-Identifier: Apache-2.0
// OutputDirectory: a directory that appears whole or not at all. It is filled under a temporary
// name beside its final one, and removed if it is not committed. (A killed process cannot do that:
// it leaves .NAME.converting-PID-N.)
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/status.h"

namespace diffserve {

class OutputDirectory {
 public:
  // `path` must not exist, or be an empty directory; its parent must exist.
  static Result<std::unique_ptr<OutputDirectory>> Create(const std::string& path);
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  const std::string& path() const { return path_; }            // its final path
  const std::string& temporary() const { return temporary_; }  // the path that is filled
  // Error if the file system has less than `bytes` free.
  Status CheckRoom(uint64_t bytes) const;
  // Gives it its final name. Nothing is overwritten. Error: something else now has that name.
  Status Commit();

 private:
  OutputDirectory() = default;

  std::string path_, temporary_;
  bool committed_ = false;
};

}  // namespace diffserve
