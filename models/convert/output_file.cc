// SPDX-License-Identifier: Apache-2.0
#include "models/convert/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace diffserve {
namespace {

constexpr size_t kMaxWrite = size_t{1} << 30;  // below the limit of one system call

Status WriteError(const std::string& path) {
  return InvalidArgument(path + ": cannot be written: " + std::strerror(errno));
}

}  // namespace

Status OutputFile::Failed() const { return WriteError(path_); }

Result<std::unique_ptr<OutputFile>> OutputFile::OpenWith(const std::string& path, int flags) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags, 0666);
  if (descriptor < 0) return WriteError(path);
  return std::unique_ptr<OutputFile>(new OutputFile(path, descriptor));
}

Result<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path) {
  return OpenWith(path, O_CREAT | O_EXCL);
}

Result<std::unique_ptr<OutputFile>> OutputFile::Open(const std::string& path, uint64_t offset) {
  Result<std::unique_ptr<OutputFile>> file = OpenWith(path, 0);
  if (file.ok() && lseek((*file)->descriptor_, static_cast<off_t>(offset), SEEK_SET) < 0)
    return (*file)->Failed();
  return file;
}

Status OutputFile::WriteText(const std::string& path, std::string_view text) {
  Result<std::unique_ptr<OutputFile>> file = Create(path);
  if (!file.ok()) return file.status();
  DS_RETURN_IF_ERROR((*file)->Write(std::as_bytes(std::span(text))));
  return (*file)->Close();
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Status OutputFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed();
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return Status();
}

Status OutputFile::Extend(uint64_t size) {
  return ftruncate(descriptor_, static_cast<off_t>(size)) == 0 ? Status() : Failed();
}

Status OutputFile::Close() {
  if (fsync(descriptor_) != 0) return Failed();
  const int descriptor = descriptor_;
  descriptor_ = -1;
  return close(descriptor) == 0 ? Status() : Failed();
}

Status SyncDirectory(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return WriteError(path);
  // Some file systems cannot sync a directory and return EINVAL; then there is nothing to wait for.
  const bool synced = fsync(descriptor) == 0 || errno == EINVAL;
  const Status status = synced ? Status() : WriteError(path);
  close(descriptor);
  return status;
}

}  // namespace diffserve
