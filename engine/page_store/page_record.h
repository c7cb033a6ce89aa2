// SPDX-License-Identifier: Apache-2.0
// The files of a PageStore. A segment is a header sector, records, and once it is complete a list
// of its records. A record is a header sector and the payload, padded to a whole number of sectors,
// so that it can be read without the page cache. All numbers are little-endian.
//
//   segment   header | record | record | ... | list of records | end sector
//
// A segment without a valid end sector is still being written, or its writer was killed. Its
// records are then found one after another, up to the first that is not whole.
#pragma once

#include <sys/uio.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace diffserve {

inline constexpr size_t kSectorBytes = 4096;
inline constexpr size_t kMaxRecordTokens = 960;  // that fit into a record's header sector

using Sector = std::array<std::byte, kSectorBytes>;
// A digest of everything that a page's bits depend on: weights, formats, CPU level, page size.
using Fingerprint = std::array<std::byte, 32>;

enum class RecordKind : uint32_t {
  kPage = 1,      // one page of every layer without a window of its own
  kSnapshot = 2,  // the states and windows of the other layers, after the page's last token
  kErased = 3,    // forgotten; its payload means nothing
};

// Identifies a record: all tokens up to the end of its page, and the cache salt.
struct RecordKey {
  uint64_t high = 0, low = 0;
  RecordKind kind = RecordKind::kPage;
  auto operator<=>(const RecordKey&) const = default;
};

struct RecordKeyHash {
  size_t operator()(const RecordKey& key) const {
    return key.low ^ (static_cast<uint64_t>(key.kind) << 60);
  }
};

struct RecordHeader {
  RecordKey key;
  uint64_t payload_bytes = 0;
  uint64_t payload_hash = 0;    // XXH3, 64 bits
  std::vector<int32_t> tokens;  // of the page
};

// One entry of the list at a segment's end.
struct RecordEntry {
  RecordKey key;
  uint64_t offset = 0;  // of the header sector in the file
  uint64_t payload_bytes = 0;
};

struct SegmentEnd {
  uint64_t list_offset = 0, num_records = 0;
  uint64_t list_hash = 0;
};
inline constexpr size_t kEntryBytes = 40;

constexpr uint64_t PaddedBytes(uint64_t bytes) {
  return (bytes + kSectorBytes - 1) / kSectorBytes * kSectorBytes;
}
// Header sector and padded payload.
constexpr uint64_t RecordBytes(uint64_t payload_bytes) {
  return kSectorBytes + PaddedBytes(payload_bytes);
}

Sector EncodeSegmentHeader(const Fingerprint& fingerprint);
std::optional<Fingerprint> DecodeSegmentHeader(const Sector& sector);

// REQUIRES: at most kMaxRecordTokens tokens.
Sector EncodeRecordHeader(const RecordHeader& header);
std::optional<RecordHeader> DecodeRecordHeader(const Sector& sector);

std::vector<std::byte> EncodeEntries(std::span<const RecordEntry> entries);
std::vector<RecordEntry> DecodeEntries(std::span<const std::byte> bytes);
Sector EncodeSegmentEnd(const SegmentEnd& end);
std::optional<SegmentEnd> DecodeSegmentEnd(const Sector& sector);

size_t BytesOf(std::span<const iovec> parts);
// XXH3, 64 bits. That of several parts is that of their concatenation.
uint64_t HashOf(std::span<const std::byte> bytes);
uint64_t HashOf(std::span<const iovec> parts);

}  // namespace diffserve
