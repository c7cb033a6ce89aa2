// SPDX-License-Identifier: Apache-2.0
#include "models/convert/output_directory.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "kernels/base/refusal.h"
#include "models/convert/output_file.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

Status SystemError(const std::string& path, const std::string& what) {
  return InvalidArgument(path + ": " + what + ": " + std::strerror(errno));
}

// `path` absolute, without "." and "..", links or a slash at the end.
fs::path FullPath(const std::string& path) {
  std::error_code error;
  fs::path full = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) full = fs::absolute(path, error).lexically_normal();
  return full.has_filename() ? full : full.parent_path();
}

}  // namespace

Result<std::unique_ptr<OutputDirectory>> OutputDirectory::Create(const std::string& path) {
  const fs::path full = FullPath(path);
  std::error_code error;
  const fs::file_status status = fs::status(full, error);
  if (fs::exists(status) || fs::is_symlink(fs::symlink_status(full, error))) {
    if (!fs::is_directory(status))
      return NotAllowed(path + ": is not a directory",
                        "a new or empty directory; nothing is overwritten");
    const bool is_empty = fs::is_empty(full, error);
    if (error) return InvalidArgument(path + ": cannot be read: " + error.message());
    if (!is_empty)
      return NotAllowed(path + ": is not empty",
                        "a new or empty directory; nothing is overwritten");
  }
  if (!fs::is_directory(full.parent_path(), error)) {
    return InvalidArgument(path + ": cannot be made: " + full.parent_path().string() +
                           " is not a directory");
  }
  std::unique_ptr<OutputDirectory> output(new OutputDirectory());
  output->path_ = full.string();
  // In the same folder, so that naming it is one rename on one file system.
  const std::string stem = (full.parent_path() / ("." + full.filename().string() + ".converting-" +
                                                  std::to_string(getpid())))
                               .string();
  output->committed_ = true;  // until there is something to remove
  for (int attempt = 0; attempt < 100; ++attempt) {
    output->temporary_ = stem + "-" + std::to_string(attempt);
    if (mkdir(output->temporary_.c_str(), 0777) == 0) {
      output->committed_ = false;
      return output;
    }
    if (errno != EEXIST) break;
  }
  return SystemError(path, "cannot be made");
}

OutputDirectory::~OutputDirectory() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

Status OutputDirectory::CheckRoom(uint64_t bytes) const {
  struct statvfs system{};
  if (statvfs(temporary_.c_str(), &system) != 0) return SystemError(path_, "cannot be written");
  const uint64_t free = uint64_t{system.f_bavail} * system.f_frsize;
  if (bytes <= free) return Status();
  return InvalidArgument(path_ + ": needs " + std::to_string(bytes) + " bytes, and its disk has " +
                         std::to_string(free) + " free");
}

Status OutputDirectory::Commit() {
  DS_RETURN_IF_ERROR(SyncDirectory(temporary_));
  // The system replaces only an empty directory.
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
    return SystemError(path_, "cannot be made");
  committed_ = true;
  return SyncDirectory(fs::path(path_).parent_path().string());
}

}  // namespace diffserve
