// SPDX-License-Identifier: Apache-2.0
// Several PageStores on one directory, as several processes open them.
#include "engine/page_store/sibling_stores.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "engine/page_store/page_store.h"
#include "engine/page_store/store_directory.h"
#include "tests/testing/kernels/eventually.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

class SiblingStoresTest : public ::testing::Test {
 protected:
  using Bytes = std::vector<std::byte>;

  // A prefix of a subdirectory's name has the first eight bytes of a fingerprint.
  static Fingerprint FingerprintOf(int first, int last = 0) {
    Fingerprint fingerprint{};
    fingerprint.front() = static_cast<std::byte>(first);
    fingerprint.back() = static_cast<std::byte>(last);
    return fingerprint;
  }
  static RecordKey KeyOf(uint64_t i) { return {i, i * 7, RecordKind::kPage}; }
  static std::vector<int32_t> TokensOf(uint64_t i) { return {static_cast<int32_t>(i), 1}; }
  static Bytes PayloadOf(uint64_t i) {
    std::mt19937 random(static_cast<unsigned>(i));
    Bytes payload(2 * kSectorBytes + 100);
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
    return payload;
  }

  struct How {
    Fingerprint fingerprint = FingerprintOf(1);
    int64_t max_bytes = int64_t{1} << 30;
    std::chrono::milliseconds look_interval{0};
    std::string suffix = "";  // of the directory's path
  };
  std::unique_ptr<PageStore> Open() const { return Open(How()); }
  std::unique_ptr<PageStore> Open(const How& how) const {
    Result<std::unique_ptr<PageStore>> store = PageStore::Open(
        {.directory = directory() + how.suffix,
         .max_bytes = how.max_bytes,
         .fingerprint = how.fingerprint,
         .segment_bytes = 100 << 10,  // six records
         .look_interval = how.look_interval});
    EXPECT_TRUE(store.ok()) << store.status().message();
    return std::move(store).value();
  }
  static void Append(PageStore& store, uint64_t i) {
    Bytes payload = PayloadOf(i);
    const iovec part = {payload.data(), payload.size()};
    const Status status = store.Append(KeyOf(i), TokensOf(i), {&part, 1});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  static void AppendAll(PageStore& store, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) Append(store, i);
  }
  // What is read has the right bytes.
  static Status Read(PageStore& store, uint64_t i) {
    Bytes payload = PayloadOf(i);
    const Bytes expected = std::exchange(payload, Bytes(payload.size()));
    const iovec part = {payload.data(), payload.size()};
    const Status status = store.Read(KeyOf(i), TokensOf(i), {&part, 1});
    EXPECT_TRUE(!status.ok() || payload == expected) << i;
    EXPECT_TRUE(status.ok() || !store.Contains(KeyOf(i))) << i;
    return status;
  }
  static int NumFound(PageStore& store, uint64_t begin, uint64_t end) {
    int found = 0;
    for (uint64_t i = begin; i < end; ++i) found += Read(store, i).ok() ? 1 : 0;
    return found;
  }
  static std::vector<SegmentFile> Segments(const PageStore& store) {
    return SegmentFilesIn(store.directory());
  }
  static void SetAge(const std::string& path, int64_t age_ns) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    const timespec used = {now.tv_sec - age_ns / 1'000'000'000, 0};
    const timespec times[] = {used, used};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  std::string directory() const { return (temporary_.path() / "cache").string(); }

  const TemporaryDirectory temporary_;
};

TEST_F(SiblingStoresTest, RecordsOfARunningSiblingAreFoundAsTheyCome) {
  const auto writer = Open(), reader = Open();
  for (uint64_t end = 1; end < 20; ++end) {
    Append(*writer, end);
    EXPECT_FALSE(reader->Contains(KeyOf(end)));
    reader->LookAtSiblings();
    EXPECT_TRUE(Read(*reader, end).ok()) << end;
    EXPECT_EQ(reader->num_sibling_records(), end);
  }
  EXPECT_EQ(NumFound(*reader, 1, 20), 19);
  EXPECT_EQ(reader->num_records(), 0u);
  EXPECT_EQ(reader->bytes(), 0);
}

TEST_F(SiblingStoresTest, StoreThatOpensBesideAnotherFindsItsRecordsAtOnce) {
  const auto predecessor = Open();
  AppendAll(*predecessor, 0, 20);
  const auto successor = Open({.suffix = "/"});
  EXPECT_NE(successor->directory(), predecessor->directory());
  EXPECT_EQ(successor->num_sibling_records(), 20u);
  EXPECT_EQ(NumFound(*successor, 0, 20), 20);
}

TEST_F(SiblingStoresTest, ThreadLooksByItself) {
  const auto writer = Open(), reader = Open({.look_interval = std::chrono::milliseconds(1)});
  Append(*writer, 1);
  EXPECT_TRUE(testing::Eventually([&] { return reader->Contains(KeyOf(1)); }));
  EXPECT_TRUE(Read(*reader, 1).ok());
}

TEST_F(SiblingStoresTest, WhatASiblingHasIsNotStoredAgain) {
  const auto writer = Open(), reader = Open();
  Append(*writer, 1);
  reader->LookAtSiblings();
  Append(*reader, 1);
  EXPECT_EQ(reader->bytes(), 0);
  fs::remove(Segments(*writer).at(0).path);
  EXPECT_EQ(Read(*reader, 1).code(), StatusCode::kNotFound);
  Append(*reader, 1);
  EXPECT_TRUE(Read(*reader, 1).ok());
}

TEST_F(SiblingStoresTest, SegmentDeletedBetweenLookAndReadIsAMiss) {
  const auto writer = Open(), reader = Open();
  AppendAll(*writer, 0, 12);
  reader->LookAtSiblings();
  ASSERT_EQ(reader->num_sibling_records(), 12u);
  fs::remove(Segments(*writer).at(0).path);
  EXPECT_EQ(Read(*reader, 0).code(), StatusCode::kNotFound);
  const size_t left = reader->num_sibling_records();
  EXPECT_LT(left, 8u) << "the segment's other records are forgotten with it";
  EXPECT_GT(left, 0u);
  EXPECT_EQ(NumFound(*reader, 0, 12), static_cast<int>(left));
  fs::remove_all(writer->directory());
  reader->LookAtSiblings();
  EXPECT_EQ(reader->num_sibling_records(), 0u);
}

TEST_F(SiblingStoresTest, FileThatTookADeletedOnesNameIsAnother) {
  const auto writer = Open(), reader = Open();
  Append(*writer, 1);
  reader->LookAtSiblings();
  const std::string path = Segments(*writer).at(0).path;
  const auto other = Open();
  Append(*other, 2);
  fs::rename(Segments(*other).at(0).path, path);
  EXPECT_EQ(Read(*reader, 1).code(), StatusCode::kNotFound);
  reader->LookAtSiblings();
  EXPECT_TRUE(Read(*reader, 2).ok());
  EXPECT_EQ(reader->num_sibling_records(), 1u);
}

TEST_F(SiblingStoresTest, DeletedSegmentTakesNoRoomWhileItIsKnown) {
  const auto writer = Open(), reader = Open();
  Append(*writer, 1);
  reader->LookAtSiblings();
  ASSERT_TRUE(Read(*reader, 1).ok());
  const fs::path segment = Segments(*writer).at(0).path;
  int num_open = 0;
  for (const auto& fd : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    num_open += fs::read_symlink(fd, ignored) == segment ? 1 : 0;
  }
  EXPECT_EQ(num_open, 1) << "the writer's";
}

TEST_F(SiblingStoresTest, OtherFingerprintsAreNotRead) {
  const auto reader = Open(), other = Open({.fingerprint = FingerprintOf(2)}),
             nearly = Open({.fingerprint = FingerprintOf(1, 1)});
  Append(*other, 1);
  Append(*nearly, 2);
  fs::copy_file(Segments(*other).at(0).path, fs::path(nearly->directory()) / "77.pages");
  reader->LookAtSiblings();
  EXPECT_EQ(reader->num_sibling_records(), 0u);
}

TEST_F(SiblingStoresTest, TornSegmentOfAKilledWriterGivesItsWholeRecords) {
  const auto first = Open();
  auto free = Open();
  std::string torn;
  fs::path path;
  {
    const auto writer = Open();
    AppendAll(*writer, 0, 4);
    path = Segments(*writer).at(0).path;
    torn = FileBytes(path);
  }
  free.reset();
  const uint64_t record = RecordBytes(PayloadOf(0).size());
  // The last bytes of a record are padding.
  for (const uint64_t cut : {uint64_t{4000}, record - kSectorBytes - 1, record - kSectorBytes,
                             record - 1, record, record + 4000, 2 * record + 4000}) {
    WriteFile(path, torn.substr(0, torn.size() - cut));
    const auto reader = Open();
    ASSERT_NE(reader->directory(), path.parent_path());
    EXPECT_EQ(NumFound(*reader, 0, 4), static_cast<int>(4 - (cut + record - 1) / record)) << cut;
  }
}

TEST_F(SiblingStoresTest, ForgettingWritesNothingIntoASiblingsFiles) {
  const auto writer = Open(), reader = Open();
  AppendAll(*writer, 0, 3);
  reader->LookAtSiblings();
  const std::string path = Segments(*writer).at(0).path, before = FileBytes(path);
  reader->Erase(KeyOf(1));
  EXPECT_EQ(NumFound(*reader, 0, 3), 2);
  reader->Clear();
  EXPECT_EQ(NumFound(*reader, 0, 3), 0);
  EXPECT_EQ(FileBytes(path), before);
  EXPECT_EQ(NumFound(*writer, 0, 3), 3);
}

TEST_F(SiblingStoresTest, ErasedRecordStaysForgottenWhenTheSegmentIsComplete) {
  auto writer = Open();
  const auto reader = Open();
  AppendAll(*writer, 0, 3);
  reader->LookAtSiblings();
  reader->Erase(KeyOf(1));
  writer.reset();  // writes the list
  reader->LookAtSiblings();
  EXPECT_EQ(NumFound(*reader, 0, 3), 2);
}

TEST_F(SiblingStoresTest, RecordThatItsOwnerForgotIsAMiss) {
  const auto writer = Open(), reader = Open();
  AppendAll(*writer, 0, 2);
  reader->LookAtSiblings();
  writer->Erase(KeyOf(0));
  EXPECT_EQ(Read(*reader, 0).code(), StatusCode::kNotFound);
  EXPECT_TRUE(Read(*reader, 1).ok());
}

TEST_F(SiblingStoresTest, ClearForgetsWhatIsThereAndNotWhatComes) {
  const auto writer = Open(), reader = Open();
  AppendAll(*writer, 0, 2);
  reader->LookAtSiblings();
  Append(*writer, 2);  // not known yet
  reader->Clear();
  EXPECT_EQ(reader->num_sibling_records(), 0u);
  reader->LookAtSiblings();
  EXPECT_EQ(reader->num_sibling_records(), 0u);
  Append(*writer, 3);
  reader->LookAtSiblings();
  EXPECT_EQ(reader->num_sibling_records(), 1u);
  EXPECT_TRUE(Read(*reader, 3).ok());
}

TEST_F(SiblingStoresTest, DamagedRecordIsForgottenAndTheOthersStay) {
  const auto writer = Open(), reader = Open();
  AppendAll(*writer, 0, 3);
  const std::string path = Segments(*writer).at(0).path;
  std::string bytes = FileBytes(path);
  bytes[2 * kSectorBytes + RecordBytes(PayloadOf(0).size())] ^= 1;
  WriteFile(path, bytes);
  reader->LookAtSiblings();
  EXPECT_EQ(Read(*reader, 1).code(), StatusCode::kInternal);
  EXPECT_EQ(Read(*reader, 1).code(), StatusCode::kNotFound);
  EXPECT_EQ(NumFound(*reader, 0, 3), 2);
}

TEST_F(SiblingStoresTest, PlantedLinksAndDirectoriesThatOthersMayWriteAreNotRead) {
  const auto reader = Open(), open_to_all = Open(), linked = Open();
  Append(*open_to_all, 1);
  fs::permissions(open_to_all->directory(), fs::perms::all);
  const std::string prefix = directory() + "/" + SubdirectoryPrefix(FingerprintOf(1));
  fs::create_directory_symlink(open_to_all->directory(), prefix + "9");
  fs::create_symlink(Segments(*open_to_all).at(0).path, linked->directory() + "/5.pages");
  reader->LookAtSiblings();
  EXPECT_EQ(reader->num_sibling_records(), 0u);
}

TEST_F(SiblingStoresTest, ReadMarksALeftSegmentAsUsed) {
  const auto reader = Open();
  std::string path;
  {
    const auto writer = Open();
    Append(*writer, 1);
    path = Segments(*writer).at(0).path;
  }
  SetAge(path, kMaxUnusedNs);
  reader->LookAtSiblings();
  ASSERT_TRUE(Read(*reader, 1).ok());
  const std::string left = fs::path(path).parent_path().string();
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  EXPECT_GT(SegmentFilesIn(left).at(0).used_ns, (now.tv_sec - 600) * int64_t{1'000'000'000});
}

TEST_F(SiblingStoresTest, OldFilesOfOtherFingerprintsGoAndThoseOfSiblingsStay) {
  std::vector<std::string> paths;
  {
    const auto own = Open(), sibling = Open(), other = Open({.fingerprint = FingerprintOf(2)}),
               old = Open({.fingerprint = FingerprintOf(3)});
    for (PageStore* store : {sibling.get(), other.get(), old.get()}) {
      Append(*store, 1);
      paths.push_back(Segments(*store).at(0).path);
    }
  }
  SetAge(paths[0], 2 * kMaxUnusedNs);
  SetAge(paths[2], kMaxUnusedNs + 10'000'000'000);
  const auto store = Open();
  EXPECT_TRUE(fs::exists(paths[0]));
  EXPECT_TRUE(fs::exists(paths[1]));
  EXPECT_FALSE(fs::exists(paths[2]));
  EXPECT_TRUE(Read(*store, 1).ok());
}

TEST_F(SiblingStoresTest, RoomIsTakenFromOtherFingerprintsBeforeSiblings) {
  std::string siblings;
  {
    const auto own = Open(), sibling = Open(), other = Open({.fingerprint = FingerprintOf(2)});
    AppendAll(*sibling, 0, 6);
    AppendAll(*other, 0, 100);
    siblings = sibling->directory();
  }
  for (const SegmentFile& file : SegmentFilesIn(siblings)) SetAge(file.path, kMaxUnusedNs / 2);
  const auto store = Open({.max_bytes = 400 << 10});
  EXPECT_EQ(NumFound(*store, 0, 6), 6);
}

// The writer's store is small, so its segments come and go while others read.
TEST_F(SiblingStoresTest, ReadersBesideAWriterThatDeletesSegmentsFindRightBytesOrNothing) {
  const auto writer = Open({.max_bytes = 900 << 10});
  const auto reader = Open({.look_interval = std::chrono::milliseconds(1)});
  std::atomic<uint64_t> written = 0;
  std::atomic<bool> ends = false;
  std::atomic<int> num_read = 0, num_wrong = 0;
  std::vector<std::thread> readers;
  for (unsigned seed = 0; seed < 2; ++seed) {
    readers.emplace_back([&, seed] {
      std::mt19937 random(seed);
      while (!ends) {
        const uint64_t newest = written;
        const uint64_t i = newest - std::min<uint64_t>(newest, random() % 100);
        const Status status = Read(*reader, i);
        num_read += status.ok() ? 1 : 0;
        num_wrong += status.ok() || status.code() == StatusCode::kNotFound ? 0 : 1;
      }
    });
  }
  for (uint64_t i = 0; i < 2000 || (num_read < 100 && i < 100'000); ++i) {
    Append(*writer, i);
    written = i;
  }
  ends = true;
  for (std::thread& thread : readers) thread.join();
  EXPECT_GE(num_read, 100);
  EXPECT_EQ(num_wrong, 0);
}

}  // namespace
}  // namespace diffserve
