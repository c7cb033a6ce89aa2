// OutputDirectory: a directory that appears whole or not at all. It is filled under a temporary
// name beside its own, and what is not committed is removed. (A process that is killed cannot:
// .NAME.converting-PID-N is then left.)
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

  const std::string& path() const { return path_; }            // its final place
  const std::string& temporary() const { return temporary_; }  // where it is filled
  // Error if the file system has less than `bytes` free.
  Status CheckRoom(uint64_t bytes) const;
  // Gives it its name. Nothing is overwritten: error if something has come to stand there
  // meanwhile.
  Status Commit();

 private:
  OutputDirectory() = default;

  std::string path_, temporary_;
  bool committed_ = false;
};

}  // namespace diffserve
