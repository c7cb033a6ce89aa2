// SPDX-License-Identifier: Apache-2.0
// A script of pieces that become the segments of a PageStore: sectors with right hashes and hostile
// numbers, payloads, lists, any bytes. The store opens them, and what it reads is a payload whose
// header is in the files, what it appends is read back, also by the next process.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>

#include "engine/page_store/page_store.h"
#include "engine/page_store/store_directory.h"
#include "kernels/process/check.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxBytes = 512 << 10, kSegmentBytes = 64 << 10;
constexpr int kMaxCalls = 100;
constexpr size_t kMaxFileBytes = 64 << 10;  // beside holes
constexpr size_t kNumKeys = 8;
constexpr size_t kPayloadBytes[kNumKeys] = {0, 1, 100, 4096, 4096, 5000, 8192, 9000};
constexpr const char* kNames[] = {"00000001", "00000002", "7", "1234567890123"};

// A script's numbers; zeros after its end.
class Script {
 public:
  Script(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool at_end() const { return at_ >= size_; }
  uint8_t Byte() { return at_end() ? 0 : data_[at_++]; }
  // A byte for small numbers and for whole sectors, nine for any number.
  uint64_t Number() {
    const uint8_t byte = Byte();
    if (byte < 0x80) return byte;
    if (byte < 0xf0) return (byte - 0x80) * kSectorBytes;
    uint64_t number = 0;
    for (int i = 0; i < 8; ++i) number = number << 8 | Byte();
    return number;
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

RecordKey KeyOf(uint8_t i) {
  return {i % kNumKeys, 1, i & 8 ? RecordKind::kSnapshot : RecordKind::kPage};
}
std::vector<int32_t> TokensOf(const RecordKey& key) { return {static_cast<int32_t>(key.high), 7}; }
std::vector<std::byte> PayloadOf(const RecordKey& key, uint8_t seed) {
  std::vector<std::byte> payload(kPayloadBytes[key.high % kNumKeys], std::byte{seed});
  for (size_t i = 0; i < payload.size(); i += 1000) payload[i] = static_cast<std::byte>(i / 1000);
  return payload;
}

// Sets a number of a sector and its hash, which is the last.
void Put(Sector& sector, size_t index, uint64_t number) {
  constexpr size_t kHash = kSectorBytes - sizeof(uint64_t);
  std::memcpy(&sector[index * sizeof(number)], &number, sizeof(number));
  number = HashOf(std::span(sector).first(kHash));
  std::memcpy(&sector[kHash], &number, sizeof(number));
}

class SegmentBuilder {
 public:
  explicit SegmentBuilder(Script& script) : script_(script) {}

  void WriteTo(const fs::path& path) {
    uint64_t holes = 0;
    for (uint8_t piece = 1; piece != 0 && !script_.at_end() && bytes_.size() < kMaxFileBytes;) {
      piece = script_.Byte() % 8;
      if (piece == 1) AddHeader();
      if (piece == 2) AddRecord();
      if (piece == 3) AddList();
      if (piece == 4) AddEnd();
      if (piece == 5) bytes_.resize(bytes_.size() + script_.Byte());
      if (piece == 6) bytes_.push_back(static_cast<std::byte>(script_.Byte()));
      if (piece == 7) holes = script_.Number() >> 1;
    }
    WriteFile(path, {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()});
    if (holes <= bytes_.size()) return;
    [[maybe_unused]] const int ignored = truncate(path.c_str(), static_cast<off_t>(holes));
  }

 private:
  template <typename Bytes>
  void Add(const Bytes& bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  void AddHeader() {
    Fingerprint fingerprint{};
    fingerprint[0] = static_cast<std::byte>(script_.Byte());
    Add(EncodeSegmentHeader(fingerprint));
  }

  void AddRecord() {
    const RecordKey key = KeyOf(script_.Byte());
    const uint8_t flags = script_.Byte();
    const std::vector<std::byte> payload = PayloadOf(key, script_.Byte());
    entries_.push_back({key, bytes_.size(), payload.size()});
    Sector sector = EncodeRecordHeader({key, payload.size(), HashOf(payload), TokensOf(key)});
    if (flags & 1) Put(sector, 4, entries_.back().payload_bytes = script_.Number());
    if (flags & 2) Put(sector, 6, script_.Number());  // the number of its tokens
    if (flags & 4) Put(sector, 7, script_.Number());  // its first tokens
    if (flags & 8) Put(sector, 5, script_.Number());  // the payload's hash
    Add(sector);
    if (flags & 16) return;
    Add(payload);
    if (!(flags & 32)) bytes_.resize(PaddedBytes(bytes_.size()));
  }

  // The records so far, each of whose numbers may be another.
  void AddList() {
    const uint8_t flags = script_.Byte();
    std::vector<RecordEntry> entries = entries_;
    for (RecordEntry& entry : entries) {
      if (flags & 1) entry.key = KeyOf(script_.Byte());
      if (flags & 2) entry.offset = script_.Number();
      if (flags & 4) entry.payload_bytes = script_.Number();
    }
    const std::vector<std::byte> list = EncodeEntries(entries);
    end_ = {bytes_.size(), entries.size(), HashOf(list)};
    Add(list);
    if (!(flags & 8)) bytes_.resize(PaddedBytes(bytes_.size()));
  }

  void AddEnd() {
    const uint8_t flags = script_.Byte();
    if (flags & 1) end_.list_offset = script_.Number();
    if (flags & 2) end_.num_records = script_.Number();
    if (flags & 4) end_.list_hash = script_.Number();
    Add(EncodeSegmentEnd(end_));
  }

  Script& script_;
  std::vector<std::byte> bytes_;
  std::vector<RecordEntry> entries_;
  SegmentEnd end_;
};

std::unique_ptr<PageStore> OpenStore(const fs::path& directory) {
  Result<std::unique_ptr<PageStore>> store = PageStore::Open(
      {.directory = directory.string(), .max_bytes = kMaxBytes, .segment_bytes = kSegmentBytes});
  DS_CHECK(store.ok(), "damaged segments stop no server");
  DS_CHECK((*store)->bytes() >= 0 && (*store)->bytes() <= (*store)->max_bytes(), "there is room");
  int64_t bytes = 0;
  for (const SegmentFile& file : SegmentFilesIn((*store)->directory())) bytes += file.bytes;
  DS_CHECK(bytes == (*store)->bytes(), "the bytes of all files are counted");
  return std::move(store).value();
}

// The beginning of a file, without most of its hole.
std::string Beginning(const std::string& path) {
  std::string bytes(2 * kMaxFileBytes, '\0');
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t count = pread(fd, bytes.data(), bytes.size(), 0);
  close(fd);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(0, count)));
  return bytes;
}

// Whether a file has a record's header with this key and these tokens before this payload, whose
// hash it carries.
bool IsInFiles(const PageStore& store, const RecordKey& key, std::span<const std::byte> payload) {
  const Sector sample = EncodeRecordHeader({});
  const std::string_view magic(reinterpret_cast<const char*>(sample.data()), sizeof(uint64_t));
  for (const SegmentFile& file : SegmentFilesIn(store.directory())) {
    const std::string bytes = Beginning(file.path);
    for (size_t at = bytes.find(magic); at != std::string::npos; at = bytes.find(magic, at + 1)) {
      if (bytes.size() - at < kSectorBytes + payload.size()) break;
      Sector sector;
      std::memcpy(sector.data(), &bytes[at], kSectorBytes);
      const std::optional<RecordHeader> header = DecodeRecordHeader(sector);
      if (header && header->key == key && header->tokens == TokensOf(key) &&
          header->payload_hash == HashOf(payload) &&
          std::ranges::equal(
              std::as_bytes(std::span(bytes).subspan(at + kSectorBytes, payload.size())), payload))
        return true;
    }
  }
  return false;
}

// The payload, if the store has it.
std::optional<std::vector<std::byte>> Read(PageStore& store, const RecordKey& key) {
  std::vector<std::byte> payload(PayloadOf(key, 0));
  // Two parts, as the layers of a page are.
  const size_t first = payload.size() / 3;
  const iovec parts[] = {{payload.data(), first}, {payload.data() + first, payload.size() - first}};
  const bool was_there = store.Contains(key);
  const Status status = store.Read(key, TokensOf(key), parts);
  DS_CHECK(was_there || status.code() == StatusCode::kNotFound, "only what is there is read");
  DS_CHECK(status.ok() == store.Contains(key), "damage is forgotten");
  if (!status.ok()) return std::nullopt;
  return payload;
}

void Append(PageStore& store, const RecordKey& key, uint8_t seed) {
  std::vector<std::byte> payload = PayloadOf(key, seed);
  const iovec part = {payload.data(), payload.size()};
  const auto append = [&] { DS_CHECK(store.Append(key, TokensOf(key), {&part, 1}).ok(), "room"); };
  const bool was_there = store.Contains(key);
  append();
  std::optional<std::vector<std::byte>> read = Read(store, key);
  DS_CHECK(was_there || read == payload, "what was appended is read");
  if (read) return;
  append();  // what was there was damaged
  DS_CHECK(Read(store, key) == payload, "what was appended is read");
}

void Use(const fs::path& directory, Script& script) {
  std::vector<RecordKey> new_keys;
  std::vector<std::pair<RecordKey, std::vector<std::byte>>> held;
  {
    const std::unique_ptr<PageStore> store = OpenStore(directory);
    for (uint8_t i = 0; i < 2 * kNumKeys; ++i) {
      if (!store->Contains(KeyOf(i))) new_keys.push_back(KeyOf(i));
      const std::optional<std::vector<std::byte>> payload = Read(*store, KeyOf(i));
      DS_CHECK(!payload || IsInFiles(*store, KeyOf(i), *payload), "what is read is in the files");
    }
    for (int i = 0; i < kMaxCalls && !script.at_end(); ++i) {
      const RecordKey key = KeyOf(script.Byte());
      const uint8_t seed = script.Byte();
      if (seed == 0) store->Erase(key);
      if (seed == 1) store->Clear();
      if (seed > 1) Append(*store, key, seed);
      DS_CHECK(store->bytes() <= store->max_bytes(), "there is room");
    }
    for (const RecordKey& key : new_keys) {
      if (auto payload = Read(*store, key)) held.emplace_back(key, std::move(*payload));
    }
  }
  const std::unique_ptr<PageStore> store = OpenStore(directory);
  for (const auto& [key, payload] : held)
    DS_CHECK(Read(*store, key) == payload, "the next process reads the same");
}

}  // namespace
}  // namespace diffserve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace diffserve;
  static const TemporaryDirectory directory;
  static const fs::path cache = directory.path() / "cache";
  static const std::string own =
      PageStore::Open({.directory = cache.string(), .max_bytes = kMaxBytes}).value()->directory();
  static const fs::path other = cache / "other-0";
  for (const fs::path& place : {fs::path(own), other}) {
    fs::remove_all(place);
    fs::create_directories(place);
    WriteFile(place / "lock", "");
  }
  Script script(data, size);
  for (int left = script.Byte() % 4; left >= 0; --left) {
    const uint8_t name = script.Byte();
    const std::string file = kNames[name % std::size(kNames)] + std::string(kSegmentSuffix);
    SegmentBuilder(script).WriteTo((name & 0x80 ? other : fs::path(own)) / file);
  }
  Use(cache, script);
  return 0;
}
