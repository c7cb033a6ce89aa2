// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/store_summary.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "engine/page_store/page_store.h"
#include "engine/page_store/store_directory.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

// A store of this fingerprint with records of one sector.
std::unique_ptr<PageStore> StoreWith(const TemporaryDirectory& directory, int fingerprint,
                                     int num_pages) {
  Fingerprint own{};
  own[0] = static_cast<std::byte>(fingerprint);
  Result<std::unique_ptr<PageStore>> store = PageStore::Open({.directory = directory.path(),
                                                              .max_bytes = 1 << 20,
                                                              .fingerprint = own,
                                                              .segment_bytes = 10 * kSectorBytes});
  EXPECT_TRUE(store.ok()) << store.status().message();
  Sector page{};
  const iovec part = {page.data(), page.size()};
  for (uint64_t i = 0; i < static_cast<uint64_t>(num_pages); ++i) {
    const RecordKey key = {i, i, i == 0 ? RecordKind::kSnapshot : RecordKind::kPage};
    EXPECT_TRUE((*store)->Append(key, {}, std::span(&part, 1)).ok());
  }
  return std::move(store).value();
}

std::vector<StoreSummary> SummariesOf(const TemporaryDirectory& directory) {
  const Result<std::vector<StoreSummary>> stores = SummarizeStores(directory.path());
  EXPECT_TRUE(stores.ok()) << stores.status().message();
  return stores.ok() ? *stores : std::vector<StoreSummary>();
}

TEST(StoreSummaryTest, CountsWhatAStoreHoldsWhileItIsOpenAndAfter) {
  const TemporaryDirectory directory;
  std::unique_ptr<PageStore> store = StoreWith(directory, 0x2f, 9);
  for (const bool is_open : {true, false}) {
    if (!is_open) store.reset();
    const std::vector<StoreSummary> stores = SummariesOf(directory);
    ASSERT_EQ(stores.size(), 1u);
    const StoreSummary& found = stores[0];
    EXPECT_EQ(found.name, "2f00000000000000-0");
    EXPECT_EQ(found.is_held, is_open);
    // Four records of two sectors fit beside a header sector and a list.
    EXPECT_EQ(found.num_segments, 3);
    EXPECT_EQ(found.num_incomplete, is_open ? 1 : 0);
    EXPECT_EQ(found.num_unreadable, 0);
    EXPECT_EQ(found.num_pages, 8);
    EXPECT_EQ(found.num_snapshots, 1);
    EXPECT_GT(found.bytes, 18 * static_cast<int64_t>(kSectorBytes));
    EXPECT_GT(found.oldest_use_ns, 0);
    EXPECT_LE(found.oldest_use_ns, found.newest_use_ns);
  }
}

TEST(StoreSummaryTest, EachFingerprintAndProcessHasItsOwn) {
  const TemporaryDirectory directory;
  const auto first = StoreWith(directory, 2, 1), second = StoreWith(directory, 2, 3);
  StoreWith(directory, 1, 5);
  const std::vector<StoreSummary> stores = SummariesOf(directory);
  ASSERT_EQ(stores.size(), 3u);
  EXPECT_EQ(stores[0].name, "0100000000000000-0");
  EXPECT_FALSE(stores[0].is_held);
  EXPECT_EQ(stores[0].num_pages, 4);
  EXPECT_EQ(stores[1].name, "0200000000000000-0");
  EXPECT_EQ(stores[2].name, "0200000000000000-1");
  EXPECT_TRUE(stores[1].is_held && stores[2].is_held);
  EXPECT_EQ(stores[2].num_pages, 2);
}

TEST(StoreSummaryTest, DamagedAndForeignSegmentsAreUnreadable) {
  const TemporaryDirectory directory;
  StoreWith(directory, 1, 2);
  StoreWith(directory, 2, 2);
  const std::filesystem::path own = directory.path() / "0100000000000000-0";
  std::filesystem::copy_file(directory.path() / "0200000000000000-0" / "00000001.pages",
                             own / "00000007.pages");
  directory.Write("0100000000000000-0/00000008.pages", "no segment");
  directory.Write("0100000000000000-0/notes.txt", "something else");
  directory.Write("digests/1.digest", "something else");
  const std::vector<StoreSummary> stores = SummariesOf(directory);
  ASSERT_EQ(stores.size(), 2u);
  EXPECT_EQ(stores[0].num_segments, 3);
  EXPECT_EQ(stores[0].num_unreadable, 2);
  EXPECT_EQ(stores[0].num_pages, 1);
}

TEST(StoreSummaryTest, NothingIsWritten) {
  const TemporaryDirectory directory;
  StoreWith(directory, 1, 20);
  std::filesystem::remove(directory.path() / "0100000000000000-0" / "lock");
  const auto files = [&] {
    std::map<std::string, std::filesystem::file_time_type> times;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path()))
      times[entry.path().string()] = entry.last_write_time();
    return times;
  };
  const auto before = files();
  EXPECT_FALSE(SummariesOf(directory)[0].is_held);
  EXPECT_EQ(files(), before);
}

TEST(StoreSummaryTest, DirectoryThatIsNotThereIsNamed) {
  const TemporaryDirectory directory;
  const Status status = SummarizeStores((directory.path() / "none").string()).status();
  EXPECT_EQ(status.message(), "--kv-cache-dir " + (directory.path() / "none").string() +
                                  ": No such file or directory");
}

}  // namespace
}  // namespace diffserve
