// SPDX-License-Identifier: Apache-2.0
// What other users may have put into the directory of --kv-cache-dir.
#include "engine/page_store/store_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/page_store/page_store.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

// Where others may write, what they plant is neither followed nor trusted.
TEST(StoreDirectoryTest, PlantedLinksPipesAndForeignDirectoriesAreNotUsed) {
  const TemporaryDirectory directory;
  const fs::path cache = directory.path() / "cache", target = directory.path() / "target";
  const fs::path own = cache / (SubdirectoryPrefix(Fingerprint{}) + "0");
  const auto open = [&] {
    PageStore::Options options = {.directory = cache.string(), .max_bytes = int64_t{1} << 30};
    options.segment_bytes = 100 << 10;
    return PageStore::Open(options);
  };
  const auto status = [&] {
    const auto opened = open();
    return opened.ok() ? std::string() : opened.status().message();
  };
  fs::create_directories(target);
  fs::create_directories(cache);
  fs::create_directory_symlink(target, own);
  EXPECT_THAT(status(), ::testing::HasSubstr("is a link or file"));
  EXPECT_TRUE(fs::is_empty(target));
  fs::remove(own);
  fs::create_directory(own);
  fs::permissions(own, fs::perms::all);
  EXPECT_THAT(status(), ::testing::HasSubstr("may be written by everyone"));
  fs::permissions(own, fs::perms::owner_all);
  fs::create_symlink(target / "made", own / "lock");
  EXPECT_FALSE(status().empty());
  EXPECT_TRUE(fs::is_empty(target));
  fs::remove(own / "lock");
  ASSERT_EQ(mkfifo((own / "lock").c_str(), 0600), 0);
  EXPECT_FALSE(IsHeld(own.string())) << "and the question does not wait for a writer";
  fs::remove(own / "lock");
  fs::create_symlink(target / "made", own / "00000000.pages");
  const auto store = open();
  ASSERT_TRUE(store.ok());
  std::vector<std::byte> payload(100);
  const iovec part = {payload.data(), payload.size()};
  EXPECT_TRUE(
      (*store)->Append({1, 2, RecordKind::kPage}, std::vector<int32_t>{3}, {&part, 1}).ok());
  EXPECT_TRUE(fs::is_empty(target));
}

}  // namespace
}  // namespace diffserve
