// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/segment_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine/page_store/store_directory.h"

namespace diffserve {
namespace {

constexpr uint64_t kMaxRecordsInList = uint64_t{1} << 20;

template <auto kCall>
bool TransferAll(int fd, std::span<const iovec> parts, uint64_t offset) {
  std::vector<iovec> left(parts.begin(), parts.end());
  constexpr size_t kMaxParts = 1024;  // IOV_MAX
  size_t first = 0;
  while (first < left.size()) {
    if (left[first].iov_len == 0) {
      ++first;
      continue;
    }
    const auto count = static_cast<int>(std::min(left.size() - first, kMaxParts));
    const ssize_t done = kCall(fd, &left[first], count, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done == 0) errno = 0;
    if (done <= 0) return false;
    offset += static_cast<uint64_t>(done);
    for (auto bytes = static_cast<size_t>(done); bytes > 0;) {
      iovec& part = left[first];
      const size_t taken = std::min(bytes, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + taken;
      part.iov_len -= taken;
      bytes -= taken;
      if (part.iov_len == 0) ++first;
    }
  }
  return true;
}

bool ReadBytes(int fd, std::span<std::byte> bytes, uint64_t offset) {
  const iovec part = {bytes.data(), bytes.size()};
  return ReadAll(fd, std::span(&part, 1), offset);
}

bool ReadList(int fd, SegmentContents& segment) {
  Sector sector;
  const uint64_t file_bytes = segment.bytes;
  if (file_bytes < 2 * kSectorBytes || file_bytes % kSectorBytes != 0 ||
      !ReadBytes(fd, sector, file_bytes - kSectorBytes))
    return false;
  const std::optional<SegmentEnd> end = DecodeSegmentEnd(sector);
  if (!end || end->list_offset < kSectorBytes || end->list_offset > file_bytes ||
      end->num_records > kMaxRecordsInList ||
      end->num_records > (file_bytes - end->list_offset) / kEntryBytes)
    return false;
  std::vector<std::byte> list(end->num_records * kEntryBytes);
  if (!ReadBytes(fd, list, end->list_offset) || HashOf(list) != end->list_hash) return false;
  segment.entries = DecodeEntries(list);
  // Records lie between the header and the list.
  const uint64_t max_offset = end->list_offset - kSectorBytes;
  return std::ranges::all_of(segment.entries, [&](const RecordEntry& entry) {
    return entry.offset >= kSectorBytes && entry.offset <= max_offset &&
           entry.payload_bytes <= max_offset - entry.offset;
  });
}

void ScanRecords(int fd, uint64_t begin, SegmentContents& segment) {
  segment.entries.clear();
  uint64_t offset = begin;
  Sector sector;
  while (offset + kSectorBytes <= segment.bytes && ReadBytes(fd, sector, offset)) {
    const std::optional<RecordHeader> header = DecodeRecordHeader(sector);
    if (!header || header->payload_bytes > segment.bytes - offset - kSectorBytes) break;
    if (header->key.kind != RecordKind::kErased)
      segment.entries.push_back({header->key, offset, header->payload_bytes});
    offset += RecordBytes(header->payload_bytes);
  }
  segment.end = offset;
}

}  // namespace

std::optional<SegmentContents> ReadSegment(int fd, uint64_t begin) {
  struct stat file{};
  Sector sector;
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size > kMaxSegmentBytes ||
      !ReadBytes(fd, sector, 0))
    return std::nullopt;
  const std::optional<Fingerprint> fingerprint = DecodeSegmentHeader(sector);
  if (!fingerprint) return std::nullopt;
  SegmentContents segment = {
      .fingerprint = *fingerprint, .bytes = static_cast<uint64_t>(file.st_size), .entries = {}};
  segment.end = segment.bytes;
  segment.is_complete = ReadList(fd, segment);
  if (!segment.is_complete) ScanRecords(fd, begin, segment);
  return segment;
}

Status ReadRecord(int fd, const RecordEntry& entry, std::span<const int32_t> tokens,
                  std::span<const iovec> payload) {
  const auto fault = [&](const std::string& what) {
    return Status(StatusCode::kInternal, "at " + std::to_string(entry.offset) + ": " + what);
  };
  if (entry.payload_bytes != BytesOf(payload)) {
    return fault("the page has " + std::to_string(entry.payload_bytes) + " bytes instead of " +
                 std::to_string(BytesOf(payload)));
  }
  Sector sector;
  std::vector<iovec> parts = {{sector.data(), sector.size()}};
  parts.insert(parts.end(), payload.begin(), payload.end());
  if (!ReadAll(fd, parts, entry.offset))
    return fault(errno == 0 ? "the file is cut off" : std::strerror(errno));
  const std::optional<RecordHeader> header = DecodeRecordHeader(sector);
  if (header && header->key.kind == RecordKind::kErased)
    return Status(StatusCode::kNotFound, "the page is forgotten");
  if (!header || header->key != entry.key || header->payload_hash != HashOf(payload))
    return fault("the checksum is wrong");
  if (!std::ranges::equal(header->tokens, tokens)) return fault("the page is of other tokens");
  return {};
}

bool ReadAll(int fd, std::span<const iovec> parts, uint64_t offset) {
  return TransferAll<&preadv>(fd, parts, offset);
}

bool WriteAll(int fd, std::span<const iovec> parts, uint64_t offset) {
  return TransferAll<&pwritev>(fd, parts, offset);
}

bool WriteAll(int fd, std::span<const std::byte> bytes, uint64_t offset) {
  const iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};  // not written to
  return WriteAll(fd, std::span(&part, 1), offset);
}

}  // namespace diffserve
