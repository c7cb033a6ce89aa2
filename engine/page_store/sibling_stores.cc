// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/sibling_stores.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/page_store/segment_reader.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

// A descriptor of a regular file, or -1.
int OpenToRead(const std::string& path, struct stat& file) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return -1;
  if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode)) return fd;
  close(fd);
  return -1;
}

}  // namespace

SiblingStores::SiblingStores(std::string directory, const std::string& own,
                             const Fingerprint& fingerprint)
    : directory_(std::move(directory)),
      own_name_(fs::path(own).filename().string()),
      prefix_(SubdirectoryPrefix(fingerprint)),
      fingerprint_(fingerprint) {}

void SiblingStores::Look() {
  {
    const std::lock_guard lock(mutex_);
    forgets_ = std::exchange(is_cleared_, false);
  }
  Segments found;
  std::error_code error;
  for (fs::directory_iterator entry(directory_, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string(), name = entry->path().filename().string();
    if (name == own_name_ || !IsSubdirectoryName(name) || !name.starts_with(prefix_) ||
        !CheckSubdirectory(path, directory_).ok())
      continue;
    for (const SegmentFile& file : SegmentFilesIn(path)) LookAt(file, found);
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [path, segment] : segments_) {
    const auto it = found.find(path);
    if (it == found.end() || it->second != segment) ForgetSegment(segment);
  }
  segments_ = std::move(found);
  for (const auto& [path, segment] : segments_) segment->is_touched = false;
}

// Adds the segment to `found`, and its new records to the index.
void SiblingStores::LookAt(const SegmentFile& file, Segments& found) {
  const auto known = segments_.find(file.path);
  std::shared_ptr<Segment> segment;
  if (known != segments_.end() && known->second->inode == file.inode) segment = known->second;
  if (segment == nullptr) segment = std::make_shared<Segment>(file.path, file.inode);
  if (segment->is_complete || segment->bytes == static_cast<uint64_t>(file.bytes)) {
    found.emplace(file.path, std::move(segment));
    return;
  }
  struct stat status{};
  const int fd = OpenToRead(file.path, status);
  if (fd < 0) return;
  const std::optional<SegmentContents> contents = ReadSegment(fd, segment->known_to);
  close(fd);
  if (status.st_ino != file.inode || !contents || contents->fingerprint != fingerprint_) return;
  const uint64_t known_to = std::exchange(segment->known_to, contents->end);
  segment->bytes = contents->bytes;
  segment->is_complete = contents->is_complete;
  found.emplace(file.path, segment);
  const std::lock_guard lock(mutex_);
  if (forgets_ || is_cleared_) return;
  for (const RecordEntry& entry : contents->entries) {
    if (entry.offset < known_to || index_.size() >= kMaxRecords) continue;
    index_[entry.key] = {segment, entry};
    segment->keys.push_back(entry.key);
  }
}

bool SiblingStores::Contains(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  return index_.contains(key);
}

Status SiblingStores::Read(const RecordKey& key, std::span<const int32_t> tokens,
                           std::span<const iovec> payload) {
  Location at;
  {
    const std::lock_guard lock(mutex_);
    const auto it = index_.find(key);
    if (it == index_.end()) return Status(StatusCode::kNotFound, "the page is not on disk");
    at = it->second;
  }
  struct stat status{};
  const int fd = OpenToRead(at.segment->path, status);
  if (fd < 0 || status.st_ino != at.segment->inode) {
    if (fd >= 0) close(fd);
    const std::lock_guard lock(mutex_);
    ForgetSegment(at.segment);
    return Status(StatusCode::kNotFound, "the file of the page is gone");
  }
  const Status read = ReadRecord(fd, at.entry, tokens, payload);
  close(fd);
  {
    const std::lock_guard lock(mutex_);
    if (!read.ok()) {
      Forget(key, at.segment);
    } else if (std::exchange(at.segment->is_touched, true)) {
      return read;
    }
  }
  if (read.ok()) utimensat(AT_FDCWD, at.segment->path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  if (read.ok() || read.code() == StatusCode::kNotFound) return read;
  return Status(read.code(), at.segment->path + " " + read.message());
}

void SiblingStores::Erase(const RecordKey& key) {
  const std::lock_guard lock(mutex_);
  index_.erase(key);
}

void SiblingStores::Clear() {
  const std::lock_guard lock(mutex_);
  index_.clear();
  is_cleared_ = true;
}

size_t SiblingStores::num_records() const {
  const std::lock_guard lock(mutex_);
  return index_.size();
}

void SiblingStores::ForgetSegment(const std::shared_ptr<Segment>& segment) {
  for (const RecordKey& key : std::exchange(segment->keys, {})) Forget(key, segment);
}

void SiblingStores::Forget(const RecordKey& key, const std::shared_ptr<Segment>& segment) {
  const auto it = index_.find(key);
  if (it != index_.end() && it->second.segment == segment) index_.erase(it);
}

}  // namespace diffserve
