// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/page_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>

#include "engine/page_store/store_directory.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

constexpr size_t kPayloadBytes = 3 * kSectorBytes + 100;

Fingerprint FingerprintOf(int i) {
  Fingerprint fingerprint{};
  fingerprint[0] = static_cast<std::byte>(i);
  return fingerprint;
}

RecordKey KeyOf(uint64_t i) { return {i * 0x9e3779b97f4a7c15, i, RecordKind::kPage}; }

std::vector<int32_t> TokensOf(uint64_t i) {
  std::vector<int32_t> tokens(16);
  for (size_t j = 0; j < tokens.size(); ++j) tokens[j] = static_cast<int32_t>(i * 31 + j);
  return tokens;
}

Bytes PayloadOf(uint64_t i) {
  std::mt19937 random(static_cast<unsigned>(i));
  Bytes payload(kPayloadBytes);
  for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
  return payload;
}

// Two parts, as the layers of a page are.
std::vector<iovec> PartsOf(Bytes& payload) {
  return {{payload.data(), 100}, {payload.data() + 100, payload.size() - 100}};
}

std::unique_ptr<PageStore> OpenStore(const TemporaryDirectory& directory, int fingerprint = 1,
                                     int64_t max_bytes = int64_t{1} << 30,
                                     int64_t segment_bytes = 100 << 10) {
  Result<std::unique_ptr<PageStore>> store = PageStore::Open(
      {.directory = (directory.path() / "cache").string(),
       .max_bytes = max_bytes,
       .fingerprint = FingerprintOf(fingerprint),
       .segment_bytes = segment_bytes});
  EXPECT_TRUE(store.ok()) << store.status().message();
  return std::move(store).value();
}

Status Append(PageStore& store, uint64_t i) {
  Bytes payload = PayloadOf(i);
  return store.Append(KeyOf(i), TokensOf(i), PartsOf(payload));
}

// Whether the record is there. What is there has the right bytes.
bool Has(PageStore& store, uint64_t i) {
  Bytes payload(kPayloadBytes);
  const Status status = store.Read(KeyOf(i), TokensOf(i), PartsOf(payload));
  EXPECT_TRUE(!status.ok() || payload == PayloadOf(i)) << i;
  return status.ok();
}

std::vector<fs::path> Segments(const PageStore& store) {
  std::vector<fs::path> paths;
  for (const SegmentFile& file : SegmentFilesIn(store.directory())) paths.emplace_back(file.path);
  return paths;
}

TEST(PageStoreTest, RecordsAreFoundAgainInThisAndLaterProcesses) {
  const TemporaryDirectory directory;
  {
    const auto store = OpenStore(directory);
    for (uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(Append(*store, i).ok());
    for (uint64_t i = 0; i < 50; ++i) EXPECT_TRUE(Has(*store, i)) << i;
    EXPECT_FALSE(Has(*store, 50));
  }
  const auto store = OpenStore(directory);
  EXPECT_EQ(store->num_records(), 50u);
  for (uint64_t i = 0; i < 50; ++i) EXPECT_TRUE(Has(*store, i)) << i;
  ASSERT_TRUE(Append(*store, 50).ok());
  EXPECT_TRUE(Has(*store, 50));
}

TEST(PageStoreTest, RecordIsStoredOnce) {
  const TemporaryDirectory directory;
  const auto store = OpenStore(directory);
  ASSERT_TRUE(Append(*store, 1).ok());
  const int64_t bytes = store->bytes();
  ASSERT_TRUE(Append(*store, 1).ok());
  EXPECT_EQ(store->bytes(), bytes);
}

TEST(PageStoreTest, KindsOfRecordsAreApart) {
  const TemporaryDirectory directory;
  const auto store = OpenStore(directory);
  ASSERT_TRUE(Append(*store, 1).ok());
  RecordKey state = KeyOf(1);
  state.kind = RecordKind::kSnapshot;
  EXPECT_FALSE(store->Contains(state));
}

TEST(PageStoreTest, OtherTokensOfTheSameKeyAreAMiss) {
  const TemporaryDirectory directory;
  const auto store = OpenStore(directory);
  ASSERT_TRUE(Append(*store, 1).ok());
  Bytes payload(kPayloadBytes);
  EXPECT_EQ(store->Read(KeyOf(1), TokensOf(2), PartsOf(payload)).code(), StatusCode::kInternal);
}

TEST(PageStoreTest, OldestSegmentsByUseMakeRoom) {
  const TemporaryDirectory directory;
  const int64_t max_bytes = 800 << 10;
  {
    const auto store = OpenStore(directory, 1, max_bytes);
    for (uint64_t i = 0; i < 200; ++i) {
      ASSERT_TRUE(Append(*store, i).ok());
      EXPECT_TRUE(Has(*store, 0));
      EXPECT_LE(store->bytes(), max_bytes);
    }
    EXPECT_TRUE(Has(*store, 0));
    EXPECT_FALSE(Has(*store, 20));
    EXPECT_TRUE(Has(*store, 199));
  }
  const auto store = OpenStore(directory, 1, max_bytes / 2);
  EXPECT_LE(store->bytes(), max_bytes / 2);
  EXPECT_TRUE(Has(*store, 199));
  int64_t bytes = 0;
  for (const SegmentFile& file : SegmentFilesIn(store->directory())) bytes += file.bytes;
  EXPECT_EQ(bytes, store->bytes());
}

TEST(PageStoreTest, FilesHaveRoomForTheirLists) {
  const TemporaryDirectory directory;
  const int64_t max_bytes = 300 << 10;
  for (uint64_t count = 1; count < 40; ++count) {
    {
      const auto store = OpenStore(directory, 1, max_bytes);
      for (uint64_t i = 0; i < count; ++i) ASSERT_TRUE(Append(*store, 100 * count + i).ok());
    }
    int64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(directory.path()))
      bytes += entry.is_regular_file() ? static_cast<int64_t>(entry.file_size()) : 0;
    EXPECT_LE(bytes, max_bytes) << count;
  }
}

TEST(PageStoreTest, ManyShortLivesLeaveNoMoreThanTheMaximumOfSegments) {
  const TemporaryDirectory directory;
  const PageStore::Options options = {.directory = (directory.path() / "cache").string(),
                                      .max_bytes = int64_t{1} << 30,
                                      .max_segments = 16};
  for (uint64_t i = 0; i < 40; ++i) {
    const auto store = PageStore::Open(options).value();
    ASSERT_TRUE(Append(*store, i).ok());
    EXPECT_LE(Segments(*store).size(), options.max_segments);
  }
  const auto store = PageStore::Open(options).value();
  EXPECT_EQ(store->num_records(), options.max_segments - 1);
  EXPECT_TRUE(Has(*store, 39));
  EXPECT_FALSE(Has(*store, 10));
}

TEST(PageStoreTest, AnotherFingerprintFindsNothing) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(Append(*OpenStore(directory, 1), 1).ok());
  EXPECT_FALSE(Has(*OpenStore(directory, 2), 1));
  EXPECT_TRUE(Has(*OpenStore(directory, 1), 1));
}

TEST(PageStoreTest, SegmentCopiedFromAnotherFingerprintIsDeleted) {
  const TemporaryDirectory directory;
  auto other = OpenStore(directory, 2);
  fs::path copy;
  {
    const auto store = OpenStore(directory, 1);
    ASSERT_TRUE(Append(*store, 1).ok());
    copy = fs::path(other->directory()) / Segments(*store).at(0).filename();
    fs::copy_file(Segments(*store).at(0), copy);
  }
  other.reset();
  EXPECT_FALSE(Has(*OpenStore(directory, 2), 1));
  EXPECT_FALSE(fs::exists(copy));
}

TEST(PageStoreTest, EachProcessHasItsOwnSubdirectory) {
  const TemporaryDirectory directory;
  const auto first = OpenStore(directory), second = OpenStore(directory);
  EXPECT_NE(first->directory(), second->directory());
  ASSERT_TRUE(Append(*first, 1).ok());
  EXPECT_FALSE(Has(*second, 1));
}

TEST(PageStoreTest, LeftSubdirectoriesOfOtherFingerprintsKeepHalf) {
  const TemporaryDirectory directory;
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(Append(*OpenStore(directory, 1), i).ok());
  const int64_t max_bytes = 400 << 10;
  const auto store = OpenStore(directory, 2, max_bytes);
  int64_t others = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory.path()))
    others += entry.is_regular_file() ? static_cast<int64_t>(entry.file_size()) : 0;
  EXPECT_LE(others, max_bytes / 2);
  EXPECT_LE(others + store->max_bytes(), max_bytes);
}

TEST(PageStoreTest, FilesArePrivate) {
  const TemporaryDirectory directory;
  const auto store = OpenStore(directory);
  ASSERT_TRUE(Append(*store, 1).ok());
  struct stat file{};
  ASSERT_EQ(stat(Segments(*store).at(0).c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(store->directory().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0700u);
}

TEST(PageStoreTest, DamageAnywhereIsAMiss) {
  const TemporaryDirectory directory;
  {
    const auto store = OpenStore(directory);
    for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(Append(*store, i).ok());
  }
  std::mt19937 random(1);
  int num_found = 0;
  for (int round = 0; round < 1000; ++round) {
    fs::path segment;
    std::string good;
    {
      const auto store = OpenStore(directory);
      segment = Segments(*store).at(0);
      good = FileBytes(segment);
    }
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    if (round % 10 == 0) bad.resize(random() % bad.size());
    WriteFile(segment, bad);
    {
      const auto store = OpenStore(directory);
      for (uint64_t i = 0; i < 4; ++i) num_found += Has(*store, i) ? 1 : 0;  // with the right bytes
    }
    WriteFile(segment, good);
  }
  EXPECT_GT(num_found, 1000) << "damage to one entry is no miss of the others";
  EXPECT_LT(num_found, 4000);
}

TEST(PageStoreTest, NumberThatWrapsAroundStopsNoAppend) {
  const TemporaryDirectory directory;
  const fs::path own = OpenStore(directory)->directory();
  for (const char* name : {"18446744073709551614.pages", "18446744073709551615.pages"})
    WriteFile(own / name, "x");
  const auto store = OpenStore(directory);
  WriteFile(own / "18446744073709551615.pages", "x");
  ASSERT_TRUE(Append(*store, 1).ok());
  EXPECT_TRUE(Has(*store, 1));
}

TEST(PageStoreTest, DamagedRecordIsForgottenAndTheOthersStay) {
  const TemporaryDirectory directory;
  const auto store = OpenStore(directory);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(Append(*store, i).ok());
  const fs::path segment = Segments(*store).at(0);
  std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(kSectorBytes + RecordBytes(kPayloadBytes) + 5000));
  file.put('x').flush();
  EXPECT_FALSE(Has(*store, 1));
  EXPECT_FALSE(store->Contains(KeyOf(1)));
  EXPECT_TRUE(Has(*store, 0));
  EXPECT_TRUE(Has(*store, 2));
  ASSERT_TRUE(Append(*store, 1).ok());
  EXPECT_TRUE(Has(*store, 1));
}

TEST(PageStoreTest, ErasedRecordStaysForgottenAndTheOthersStay) {
  const TemporaryDirectory directory;
  for (const bool complete : {true, false}) {
    fs::path segment;
    std::string bytes;
    {
      const auto store = OpenStore(directory);
      store->Clear();
      for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(Append(*store, i).ok());
      store->Erase(KeyOf(1));
      EXPECT_FALSE(Has(*store, 1));
      segment = Segments(*store).at(0);
      bytes = FileBytes(segment);
    }
    if (!complete) WriteFile(segment, bytes);  // as if it had been killed
    const auto store = OpenStore(directory);
    EXPECT_TRUE(Has(*store, 0));
    EXPECT_TRUE(Has(*store, 2));
    Bytes payload(kPayloadBytes);
    EXPECT_EQ(store->Read(KeyOf(1), TokensOf(1), PartsOf(payload)).code(), StatusCode::kNotFound);
  }
}

TEST(PageStoreTest, RecordThatIsAppendedAgainIsFoundWhicheverSegmentWasUsedLast) {
  const TemporaryDirectory directory;
  for (uint64_t i = 0; i < 3; ++i) {
    const auto store = OpenStore(directory);
    ASSERT_TRUE(Append(*store, 10 + i).ok());
    store->Erase(KeyOf(1));
    ASSERT_TRUE(Append(*store, 1).ok());
    EXPECT_TRUE(Has(*store, 10));  // uses the first segment
  }
  EXPECT_TRUE(Has(*OpenStore(directory), 1));
}

// The child is killed at a random moment. It says which records it has appended.
TEST(PageStoreTest, KilledWriterLosesAtMostTheRecordItWrote) {
  const TemporaryDirectory directory;
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    int said[2];
    ASSERT_EQ(pipe(said), 0);
    const pid_t child = fork();
    if (child == 0) {
      const auto store = OpenStore(directory);
      for (uint64_t i = 0;; ++i) {
        if (!Append(*store, 1000 * static_cast<uint64_t>(round) + i).ok()) _exit(1);
        if (write(said[1], "x", 1) != 1) _exit(1);
      }
    }
    close(said[1]);
    const unsigned wanted = 1 + random() % 20;
    char byte = 0;
    unsigned appended = 0;
    while (appended < wanted && read(said[0], &byte, 1) == 1) ++appended;
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    while (read(said[0], &byte, 1) == 1) ++appended;
    close(said[0]);
    ASSERT_GE(appended, wanted) << "the child has ended by itself";
    const auto store = OpenStore(directory);
    for (uint64_t i = 0; i < appended; ++i)
      EXPECT_TRUE(Has(*store, 1000 * static_cast<uint64_t>(round) + i)) << round << " " << i;
  }
}

TEST(PageStoreTest, FailedWriteIsAnErrorAndStoresNothing) {
  const TemporaryDirectory directory;
  const auto store = OpenStore(directory);
  ASSERT_TRUE(Append(*store, 1).ok());
  rlimit unlimited{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {static_cast<rlim_t>(store->bytes()) + 5000, unlimited.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = Append(*store, 2);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_FALSE(store->Contains(KeyOf(2)));
  EXPECT_TRUE(Has(*store, 1));
  ASSERT_TRUE(Append(*store, 2).ok());
  EXPECT_TRUE(Has(*store, 2));
}

TEST(PageStoreTest, DirectoryThatIsRemovedFailsLaterWritesOnly) {
  const TemporaryDirectory directory;
  const auto store = OpenStore(directory);
  ASSERT_TRUE(Append(*store, 1).ok());
  fs::remove_all(store->directory());
  EXPECT_TRUE(Has(*store, 1));
  Status status;
  for (uint64_t i = 2; i < 20 && status.ok(); ++i) status = Append(*store, i);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("No such file or directory"));
}

TEST(PageStoreTest, UnusableDirectoryIsRefusedByName) {
  const TemporaryDirectory directory;
  directory.Write("cache", "a file");
  const auto store = PageStore::Open(
      {.directory = (directory.path() / "cache").string(), .max_bytes = 1 << 20});
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(store.status().message(), ::testing::StartsWith("--kv-cache-dir "));
  EXPECT_EQ(store.status().param(), "--kv-cache-dir");
}

// Bytes that this process has asked the system for.
uint64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t bytes = 0;
  io >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

// A segment of records whose payloads are holes, as a process leaves it that ends (`complete`) or
// is killed.
void WriteSparseSegment(const fs::path& path, uint64_t first, uint64_t count, bool complete) {
  constexpr uint64_t kPageBytes = 64 << 10;
  const auto text = [](const auto& bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  std::ofstream file(path, std::ios::binary);
  file << text(EncodeSegmentHeader(FingerprintOf(1)));
  std::vector<RecordEntry> entries;
  uint64_t offset = kSectorBytes;
  for (uint64_t i = first; i < first + count; ++i, offset += RecordBytes(kPageBytes)) {
    entries.push_back({KeyOf(i), offset, kPageBytes});
    if (complete) continue;
    file.seekp(static_cast<std::streamoff>(offset));
    file << text(EncodeRecordHeader({KeyOf(i), kPageBytes, 0, TokensOf(i)}));
  }
  if (complete) {
    Bytes list = EncodeEntries(entries);
    const SegmentEnd end = {offset, count, HashOf(list)};
    list.resize(PaddedBytes(list.size()));
    file.seekp(static_cast<std::streamoff>(offset));
    file << text(list) << text(EncodeSegmentEnd(end));
  }
  file.close();
  if (!complete) fs::resize_file(path, offset);
}

// tests/bench/kv_disk.py takes the time from here.
TEST(PageStoreTest, StartReadsListsAndNotTheirPages) {
  constexpr uint64_t kPerSegment = 3855, kSegments = 200;  // 50 GiB
  const TemporaryDirectory directory;
  const fs::path own = OpenStore(directory)->directory();
  for (uint64_t i = 0; i < kSegments; ++i) {
    WriteSparseSegment(own / (std::to_string(i) + std::string(kSegmentSuffix)), i * kPerSegment,
                       kPerSegment, i > 0);
  }
  const uint64_t bytes_before = BytesRead();
  const auto begin = std::chrono::steady_clock::now();
  const auto store = OpenStore(directory, 1, int64_t{64} << 30, int64_t{256} << 20);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  RecordProperty("index_seconds", std::to_string(seconds.count()));
  RecordProperty("gib", std::to_string(store->bytes() >> 30));
  RecordProperty("pages", std::to_string(store->num_records()));
  EXPECT_GE(store->bytes(), int64_t{50} << 30);
  EXPECT_EQ(store->num_records(), kSegments * kPerSegment);
  EXPECT_LT(BytesRead() - bytes_before, kSegments * (kPerSegment * kEntryBytes + 8 * kSectorBytes) +
                                            kPerSegment * kSectorBytes);
  EXPECT_TRUE(store->Contains(KeyOf(kSegments * kPerSegment - 1)));
}

TEST(PageStoreTest, ClearDeletesAllRecords) {
  const TemporaryDirectory directory;
  const auto store = OpenStore(directory);
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(Append(*store, i).ok());
  store->Clear();
  EXPECT_EQ(store->num_records(), 0u);
  EXPECT_EQ(store->bytes(), 0);
  EXPECT_TRUE(Segments(*store).empty());
  ASSERT_TRUE(Append(*store, 1).ok());
  EXPECT_TRUE(Has(*store, 1));
}

}  // namespace
}  // namespace diffserve
