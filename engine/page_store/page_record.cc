// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/page_record.h"

#define XXH_STATIC_LINKING_ONLY  // a state on the stack
#include <xxhash.h>

#include <cstring>

#include "kernels/process/check.h"

namespace diffserve {
namespace {

constexpr uint64_t kSegmentMagic = 0x3147534b56534400, kRecordMagic = 0x3143455256534400,
                   kEndMagic = 0x31444e4556534400;
constexpr size_t kHashOffset = kSectorBytes - sizeof(uint64_t);

// Writes numbers one after another into a sector whose last word is the hash of the rest.
class SectorWriter {
 public:
  explicit SectorWriter(uint64_t magic) { Put(magic); }
  template <typename T>
  void Put(const T& value) {
    std::memcpy(&sector_[at_], &value, sizeof(value));
    at_ += sizeof(value);
  }
  Sector Finish() {
    const uint64_t hash = HashOf(std::span(sector_).first(kHashOffset));
    std::memcpy(&sector_[kHashOffset], &hash, sizeof(hash));
    return sector_;
  }

 private:
  Sector sector_{};
  size_t at_ = 0;
};

class SectorReader {
 public:
  explicit SectorReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T Get() {
    T value;
    std::memcpy(&value, &bytes_[at_], sizeof(value));
    at_ += sizeof(value);
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

bool IsWhole(const Sector& sector, uint64_t magic) {
  return SectorReader(sector).Get<uint64_t>() == magic &&
         SectorReader(std::span(sector).subspan(kHashOffset)).Get<uint64_t>() ==
             HashOf(std::span(sector).first(kHashOffset));
}

RecordKey GetKey(SectorReader& reader) {
  RecordKey key;
  key.high = reader.Get<uint64_t>();
  key.low = reader.Get<uint64_t>();
  key.kind = static_cast<RecordKind>(reader.Get<uint64_t>());
  return key;
}

template <typename Writer>
void PutKey(Writer& writer, const RecordKey& key) {
  writer.Put(key.high);
  writer.Put(key.low);
  writer.Put(static_cast<uint64_t>(key.kind));
}

}  // namespace

size_t BytesOf(std::span<const iovec> parts) {
  size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

uint64_t HashOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t HashOf(std::span<const iovec> parts) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const iovec& part : parts) XXH3_64bits_update(&state, part.iov_base, part.iov_len);
  return XXH3_64bits_digest(&state);
}

Sector EncodeSegmentHeader(const Fingerprint& fingerprint) {
  SectorWriter writer(kSegmentMagic);
  writer.Put(fingerprint);
  return writer.Finish();
}

std::optional<Fingerprint> DecodeSegmentHeader(const Sector& sector) {
  if (!IsWhole(sector, kSegmentMagic)) return std::nullopt;
  SectorReader reader(sector);
  reader.Get<uint64_t>();
  return reader.Get<Fingerprint>();
}

Sector EncodeRecordHeader(const RecordHeader& header) {
  DS_CHECK(header.tokens.size() <= kMaxRecordTokens, "too many tokens for a record");
  SectorWriter writer(kRecordMagic);
  PutKey(writer, header.key);
  writer.Put(header.payload_bytes);
  writer.Put(header.payload_hash);
  writer.Put(static_cast<uint64_t>(header.tokens.size()));
  for (const int32_t token : header.tokens) writer.Put(token);
  return writer.Finish();
}

std::optional<RecordHeader> DecodeRecordHeader(const Sector& sector) {
  if (!IsWhole(sector, kRecordMagic)) return std::nullopt;
  SectorReader reader(sector);
  reader.Get<uint64_t>();
  RecordHeader header;
  header.key = GetKey(reader);
  header.payload_bytes = reader.Get<uint64_t>();
  header.payload_hash = reader.Get<uint64_t>();
  const auto num_tokens = reader.Get<uint64_t>();
  if (num_tokens > kMaxRecordTokens) return std::nullopt;
  for (uint64_t i = 0; i < num_tokens; ++i) header.tokens.push_back(reader.Get<int32_t>());
  return header;
}

std::vector<std::byte> EncodeEntries(std::span<const RecordEntry> entries) {
  std::vector<std::byte> bytes(entries.size() * kEntryBytes);
  for (size_t i = 0; i < entries.size(); ++i) {
    const RecordEntry& entry = entries[i];
    const uint64_t words[] = {entry.key.high, entry.key.low, static_cast<uint64_t>(entry.key.kind),
                              entry.offset, entry.payload_bytes};
    static_assert(sizeof(words) == kEntryBytes);
    std::memcpy(&bytes[i * kEntryBytes], words, kEntryBytes);
  }
  return bytes;
}

std::vector<RecordEntry> DecodeEntries(std::span<const std::byte> bytes) {
  std::vector<RecordEntry> entries(bytes.size() / kEntryBytes);
  SectorReader reader(bytes);
  for (RecordEntry& entry : entries) {
    entry.key = GetKey(reader);
    entry.offset = reader.Get<uint64_t>();
    entry.payload_bytes = reader.Get<uint64_t>();
  }
  return entries;
}

Sector EncodeSegmentEnd(const SegmentEnd& end) {
  SectorWriter writer(kEndMagic);
  writer.Put(end.list_offset);
  writer.Put(end.num_records);
  writer.Put(end.list_hash);
  return writer.Finish();
}

std::optional<SegmentEnd> DecodeSegmentEnd(const Sector& sector) {
  if (!IsWhole(sector, kEndMagic)) return std::nullopt;
  SectorReader reader(sector);
  reader.Get<uint64_t>();
  SegmentEnd end;
  end.list_offset = reader.Get<uint64_t>();
  end.num_records = reader.Get<uint64_t>();
  end.list_hash = reader.Get<uint64_t>();
  return end;
}

}  // namespace diffserve
