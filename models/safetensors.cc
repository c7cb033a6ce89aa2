#include "models/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace diffserve {
namespace {

// Reads exactly `count` bytes at `offset`. False: the file ends before, or cannot be read (errno is then not 0).
bool ReadAt(int descriptor, size_t offset, std::byte* out, size_t count) {
  constexpr size_t kMaxRead = size_t{1} << 30;  // below the limit of one system call
  while (count > 0) {
    errno = 0;
    const ssize_t got = pread(descriptor, out, std::min(count, kMaxRead), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out += got;
    offset += static_cast<size_t>(got);
    count -= static_cast<size_t>(got);
  }
  return true;
}

Status ReadError(const std::string& path) {
  return InvalidArgument(path + ": " + (errno != 0 ? std::string("cannot be read: ") + std::strerror(errno)
                                                   : std::string("became shorter while it was read")));
}

}  // namespace

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  // Non-blocking, so that a pipe in a file's place is refused instead of waited for.
  file->descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->descriptor_ < 0) return InvalidArgument(path + ": cannot be opened: " + std::strerror(errno));
  struct stat status {};
  if (fstat(file->descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    return InvalidArgument(path + ": is not a regular file");
  }
  const size_t file_size = static_cast<size_t>(status.st_size);

  uint64_t header_bytes = 0;
  std::string bytes(std::min(file_size, sizeof(header_bytes)), '\0');
  if (!ReadAt(file->descriptor_, 0, reinterpret_cast<std::byte*>(bytes.data()), bytes.size())) return ReadError(path);
  if (bytes.size() == sizeof(header_bytes)) {
    std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
    if (header_bytes <= kMaxHeaderBytes && header_bytes <= file_size - sizeof(header_bytes)) {
      bytes.resize(sizeof(header_bytes) + header_bytes);
      if (!ReadAt(file->descriptor_, 0, reinterpret_cast<std::byte*>(bytes.data()), bytes.size())) return ReadError(path);
    }
  }
  Result<SafetensorsHeader> header = ParseHeader(bytes, file_size, path);
  if (!header.ok()) return header.status();
  file->header_ = std::move(header).value();
  file->data_offset_ = sizeof(header_bytes) + header_bytes;
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Status SafetensorsFile::Read(const SafetensorsEntry& entry, std::byte* out) const {
  return ReadAt(descriptor_, data_offset_ + entry.begin, out, entry.end - entry.begin) ? Status() : ReadError(path_);
}

}  // namespace diffserve
