// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/page_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "engine/page_store/segment_reader.h"
#include "engine/page_store/store_directory.h"
#include "kernels/process/check.h"
#include "kernels/process/thread_registry.h"

namespace diffserve {
namespace {

std::string SystemError(const std::string& what) { return what + ": " + std::strerror(errno); }

// The list of a segment's records, and its end.
uint64_t ListBytes(size_t num_records) {
  return PaddedBytes(num_records * kEntryBytes) + kSectorBytes;
}

}  // namespace

PageStore::Segment::~Segment() {
  if (fd >= 0) close(fd);
}

Result<std::unique_ptr<PageStore>> PageStore::Open(const Options& options) {
  DS_CHECK(options.max_bytes > 0 && options.segment_bytes > 0, "a store has room");
  Result<StoreDirectory> taken = TakeStoreDirectory(options.directory, options.fingerprint,
                                                    options.max_bytes / 2);
  if (!taken.ok()) return taken.status();
  std::unique_ptr<PageStore> store(
      new PageStore(taken->path, taken->lock_fd, options, options.max_bytes - taken->other_bytes));
  store->LoadSegments();
  store->siblings_.Look();
  if (options.look_interval.count() > 0) {
    store->looks_ = std::thread(
        [&store = *store, interval = options.look_interval] { store.LookEvery(interval); });
  }
  return store;
}

PageStore::PageStore(std::string directory, int lock_fd, const Options& options, int64_t max_bytes)
    : directory_(std::move(directory)),
      lock_fd_(lock_fd),
      fingerprint_(options.fingerprint),
      max_bytes_(max_bytes),
      max_segments_(options.max_segments),
      segment_bytes_(std::min(options.segment_bytes, max_bytes / kSegmentsMin)),
      siblings_(options.directory, directory_, fingerprint_) {}

PageStore::~PageStore() {
  {
    const std::lock_guard lock(looks_mutex_);
    is_stopping_ = true;
  }
  stop_looking_.notify_all();
  if (looks_.joinable()) looks_.join();
  FinishSegment();
  close(lock_fd_);
}

// No file system tells a process reliably what another one appends, so it looks.
void PageStore::LookEvery(std::chrono::milliseconds interval) {
  const NamedThread named("kv_siblings", "the next look at other processes' pages");
  std::unique_lock lock(looks_mutex_);
  while (!stop_looking_.wait_for(lock, interval, [&] { return is_stopping_; })) {
    lock.unlock();
    siblings_.Look();
    lock.lock();
  }
}

std::string PageStore::PathOf(uint64_t number) const {
  std::string digits = std::to_string(number);
  digits.insert(0, 8 - std::min<size_t>(digits.size(), 8), '0');
  return directory_ + "/" + digits + std::string(kSegmentSuffix);
}

// Finds the segments that earlier processes have left. What cannot be read is deleted.
void PageStore::LoadSegments() {
  const std::vector<SegmentFile> files = SegmentFilesIn(directory_);
  const size_t num_kept = std::min(files.size(), max_segments_ - 1);
  const std::span old = std::span(files).first(files.size() - num_kept);
  for (const SegmentFile& file : old) unlink(file.path.c_str());
  for (const SegmentFile& file : std::span(files).last(num_kept)) {
    auto segment = std::make_shared<Segment>();
    segment->number = file.number;
    segment->path = file.path;
    next_number_ = std::max(next_number_, file.number + 1);
    if (!LoadSegment(*segment)) {
      unlink(file.path.c_str());
      continue;
    }
    segment->last_use = ++clock_;  // the files come in the order of their last use
    bytes_ += static_cast<int64_t>(segment->bytes);
    for (const RecordEntry& entry : segment->entries) {
      // The last written record with a key is right: those before it were forgotten.
      Location& at = index_[entry.key];
      if (at.segment == nullptr || at.segment->number <= segment->number) at = {segment, entry};
    }
    segments_.push_back(std::move(segment));
  }
  MakeRoom(0);
}

// False: it is no segment of this fingerprint, or it has no record.
bool PageStore::LoadSegment(Segment& segment) const {
  segment.fd = open(segment.path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (segment.fd < 0) return false;
  std::optional<SegmentContents> contents = ReadSegment(segment.fd);
  if (!contents || contents->fingerprint != fingerprint_) return false;
  segment.bytes = contents->bytes;
  segment.entries = std::move(contents->entries);
  return !segment.entries.empty();
}

bool PageStore::Contains(const RecordKey& key) const {
  {
    const std::lock_guard lock(mutex_);
    if (index_.contains(key)) return true;
  }
  return siblings_.Contains(key);
}

void PageStore::Touch(Segment& segment) {
  {
    const std::lock_guard lock(mutex_);
    if (segment.last_use == clock_) return;
    segment.last_use = ++clock_;
  }
  utimensat(AT_FDCWD, segment.path.c_str(), nullptr, 0);  // the order after a restart
}

void PageStore::Erase(const RecordKey& key) {
  siblings_.Erase(key);
  Location at;
  {
    const std::lock_guard lock(mutex_);
    const auto it = index_.find(key);
    if (it == index_.end()) return;
    at = std::move(it->second);
    index_.erase(it);
  }
  // For the next process.
  const RecordHeader erased = {
      {key.high, key.low, RecordKind::kErased}, at.entry.payload_bytes, 0, {}};
  WriteAll(at.segment->fd, EncodeRecordHeader(erased), at.entry.offset);
}

Status PageStore::StartSegment() {
  auto segment = std::make_shared<Segment>();
  do {
    segment->path = PathOf(segment->number = next_number_++);
    segment->fd = open(segment->path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                       0600);
  } while (segment->fd < 0 && errno == EEXIST);
  if (segment->fd < 0) return Status(StatusCode::kInternal, SystemError(segment->path));
  const Sector header = EncodeSegmentHeader(fingerprint_);
  if (!WriteAll(segment->fd, header, 0)) {
    const Status status(StatusCode::kInternal, SystemError(segment->path));
    unlink(segment->path.c_str());
    return status;
  }
  segment->bytes = kSectorBytes;
  const std::lock_guard lock(mutex_);
  segment->last_use = ++clock_;
  bytes_ += kSectorBytes;
  segments_.push_back(segment);
  open_ = std::move(segment);
  return {};
}

// Writes the list of the open segment's records. Without it the next process scans them.
void PageStore::FinishSegment() {
  if (open_ == nullptr || IsDeleted(*open_)) return open_.reset();
  const std::vector<std::byte> list = EncodeEntries(open_->entries);
  const SegmentEnd end = {open_->bytes, open_->entries.size(), HashOf(list)};
  const uint64_t end_offset = open_->bytes + ListBytes(open_->entries.size()) - kSectorBytes;
  if (WriteAll(open_->fd, list, open_->bytes) &&
      WriteAll(open_->fd, EncodeSegmentEnd(end), end_offset)) {
    const std::lock_guard lock(mutex_);
    bytes_ += static_cast<int64_t>(end_offset + kSectorBytes - open_->bytes);
    open_->bytes = end_offset + kSectorBytes;
  }
  open_.reset();
}

Status PageStore::Append(const RecordKey& key, std::span<const int32_t> tokens,
                         std::span<const iovec> payload) {
  if (Contains(key)) return {};
  RecordHeader header = {key, BytesOf(payload), 0, {tokens.begin(), tokens.end()}};
  const uint64_t record_bytes = RecordBytes(header.payload_bytes);
  if (record_bytes > static_cast<uint64_t>(segment_bytes_)) {
    return Status(StatusCode::kTooLarge, "a page has " + std::to_string(record_bytes) +
                                             " bytes on disk; " + directory_ + " takes at most " +
                                             std::to_string(segment_bytes_));
  }
  if (open_ != nullptr && IsDeleted(*open_)) open_.reset();
  if (open_ != nullptr && open_->bytes + record_bytes > static_cast<uint64_t>(segment_bytes_))
    FinishSegment();
  const size_t num_records = open_ == nullptr ? 0 : open_->entries.size();
  MakeRoom(record_bytes + kSectorBytes + ListBytes(num_records + 1));
  if (open_ == nullptr) DS_RETURN_IF_ERROR(StartSegment());

  header.payload_hash = HashOf(payload);
  Sector sector = EncodeRecordHeader(header);
  static constexpr Sector kPadding{};
  std::vector<iovec> parts = {{sector.data(), sector.size()}};
  parts.insert(parts.end(), payload.begin(), payload.end());
  parts.push_back({const_cast<std::byte*>(kPadding.data()),
                   PaddedBytes(header.payload_bytes) - header.payload_bytes});
  if (!WriteAll(open_->fd, parts, open_->bytes)) {
    const Status status(StatusCode::kInternal, SystemError(open_->path));
    // The next record overwrites what was written of this one.
    [[maybe_unused]] const int ignored = ftruncate(open_->fd, static_cast<off_t>(open_->bytes));
    return status;
  }
  const std::lock_guard lock(mutex_);
  if (open_->is_deleted) return {};  // by Clear, which this record came before
  open_->entries.push_back({key, open_->bytes, header.payload_bytes});
  index_[key] = {open_, open_->entries.back()};
  open_->bytes += record_bytes;
  bytes_ += static_cast<int64_t>(record_bytes);
  return {};
}

Status PageStore::Read(const RecordKey& key, std::span<const int32_t> tokens,
                       std::span<const iovec> payload) {
  Location at;
  {
    const std::lock_guard lock(mutex_);
    const auto it = index_.find(key);
    if (it != index_.end()) at = it->second;
  }
  if (at.segment == nullptr) return siblings_.Read(key, tokens, payload);
  const Status read = ReadRecord(at.segment->fd, at.entry, tokens, payload);
  if (read.ok()) return Touch(*at.segment), read;
  Forget(key, at.segment.get());
  if (read.code() == StatusCode::kNotFound) return read;
  return Status(read.code(), at.segment->path + " " + read.message());
}

void PageStore::Forget(const RecordKey& key, const Segment* segment) {
  const std::lock_guard lock(mutex_);
  const auto it = index_.find(key);
  if (it != index_.end() && it->second.segment.get() == segment) index_.erase(it);
}

// Deletes the segments that were used least recently, but not the open one, until there is room for
// `bytes` and one more segment.
void PageStore::MakeRoom(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  while (bytes_ + static_cast<int64_t>(bytes) > max_bytes_ || segments_.size() >= max_segments_) {
    std::shared_ptr<Segment> oldest;
    for (const std::shared_ptr<Segment>& segment : segments_) {
      if (segment != open_ && (oldest == nullptr || segment->last_use < oldest->last_use))
        oldest = segment;
    }
    if (oldest == nullptr) return;
    Delete(oldest);
  }
}

// A reader that has the segment's descriptor can still finish. REQUIRES: mutex_ is held.
void PageStore::Delete(const std::shared_ptr<Segment>& segment) {
  unlink(segment->path.c_str());
  segment->is_deleted = true;
  for (const RecordEntry& entry : segment->entries) {
    const auto it = index_.find(entry.key);
    if (it != index_.end() && it->second.segment == segment) index_.erase(it);
  }
  bytes_ -= static_cast<int64_t>(segment->bytes);
  std::erase(segments_, segment);
}

void PageStore::Clear() {
  siblings_.Clear();
  const std::lock_guard lock(mutex_);
  while (!segments_.empty()) Delete(segments_.back());
}

bool PageStore::IsDeleted(const Segment& segment) const {
  const std::lock_guard lock(mutex_);
  return segment.is_deleted;
}

int64_t PageStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

size_t PageStore::num_records() const {
  const std::lock_guard lock(mutex_);
  return index_.size();
}

}  // namespace diffserve
