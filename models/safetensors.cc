// SPDX-License-Identifier: Apache-2.0
#include "models/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/base/refusal.h"
#include "models/regular_file.h"

namespace diffserve {
namespace {

// Reads exactly `count` bytes at `offset`. False: the file ends earlier (errno is 0) or cannot be
// read.
bool ReadAt(int descriptor, size_t offset, std::byte* out, size_t count) {
  constexpr size_t kMaxRead = size_t{1} << 30;  // below the limit of one system call
  while (count > 0) {
    errno = 0;
    const ssize_t got = pread(descriptor, out, std::min(count, kMaxRead),
                              static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out += got;
    offset += static_cast<size_t>(got);
    count -= static_cast<size_t>(got);
  }
  return true;
}

Status ReadError(const std::string& path) {
  return InvalidArgument(path + ": " +
                         (errno != 0 ? std::string("cannot be read: ") + std::strerror(errno)
                                     : std::string("became shorter while it was read")));
}

// Checks that a header of `length` bytes fits after its length field in the file, of which
// `known_bytes` are available.
Status CheckHeaderLength(uint64_t length, size_t known_bytes, size_t file_size,
                         const std::string& name) {
  if (known_bytes < sizeof(length) || file_size < sizeof(length)) {
    return InvalidArgument(name + ": has " + std::to_string(file_size) +
                           " bytes, too few for a safetensors header");
  }
  if (length > SafetensorsFile::kMaxHeaderBytes) {
    return NotAllowed(name + ": says its header has " + std::to_string(length) + " bytes",
                      "at most " + std::to_string(SafetensorsFile::kMaxHeaderBytes));
  }
  const size_t available = std::min(known_bytes, file_size) - sizeof(length);
  if (length <= available) return Status();
  return InvalidArgument(name + ": says its header has " + std::to_string(length) +
                         " bytes, and only " + std::to_string(available) +
                         " follow (truncated file?)");
}

int64_t ModifiedNs(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

}  // namespace

std::string_view FileNameOf(DType dtype) {
  return dtype == DType::kFloat32 ? "F32" : dtype == DType::kBFloat16 ? "BF16" : "F16";
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  DS_RETURN_IF_ERROR(Assign(&file->descriptor_, OpenRegularFile(path)));
  struct stat status{};
  if (fstat(file->descriptor_, &status) != 0) return ReadError(path);
  file->file_size_ = static_cast<size_t>(status.st_size);
  file->modified_ns_ = ModifiedNs(status);

  uint64_t length = 0;
  const size_t length_bytes = std::min(file->file_size_, sizeof(length));
  if (!ReadAt(file->descriptor_, 0, reinterpret_cast<std::byte*>(&length), length_bytes))
    return ReadError(path);
  DS_RETURN_IF_ERROR(CheckHeaderLength(length, file->file_size_, file->file_size_, path));
  std::string text(length, '\0');
  if (!ReadAt(file->descriptor_, sizeof(length), reinterpret_cast<std::byte*>(text.data()),
              text.size()))
    return ReadError(path);
  file->data_offset_ = sizeof(length) + length;
  Result<SafetensorsIndex> index = SafetensorsIndex::Parse(
      std::move(text), file->file_size_ - file->data_offset_, path);
  if (!index.ok()) return index.status();
  file->index_ = std::move(index).value();
  return file;
}

Result<SafetensorsHeader> SafetensorsFile::ParseHeader(std::string_view bytes, size_t file_size,
                                                       const std::string& name) {
  uint64_t length = 0;
  // Little-endian, as this machine.
  std::memcpy(&length, bytes.data(), std::min(bytes.size(), sizeof(length)));
  DS_RETURN_IF_ERROR(CheckHeaderLength(length, bytes.size(), file_size, name));
  Result<SafetensorsIndex> index = SafetensorsIndex::Parse(
      std::string(bytes.substr(sizeof(length), length)), file_size - sizeof(length) - length, name);
  if (!index.ok()) return index.status();
  return index->ToHeader();
}

const SafetensorsHeader& SafetensorsFile::header() const {
  if (header_ == nullptr) header_ = std::make_unique<const SafetensorsHeader>(index_.ToHeader());
  return *header_;
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Status SafetensorsFile::Read(const SafetensorsEntry& entry, std::byte* out) const {
  if (!ReadAt(descriptor_, data_offset_ + entry.begin, out, entry.end - entry.begin))
    return ReadError(path_);
  struct stat status{};
  if (fstat(descriptor_, &status) != 0) return ReadError(path_);
  const size_t size = static_cast<size_t>(status.st_size);
  if (size == file_size_ && ModifiedNs(status) == modified_ns_) return Status();
  return InvalidArgument(path_ + (size < file_size_ ? ": became shorter" : ": was changed") +
                         " while it was read");
}

}  // namespace diffserve
