// SPDX-License-Identifier: Apache-2.0
// Files of server/hub: the layout of the cache, a blob in the making, and the models that come with
// the program.
#include "server/hub/hub_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/hub/blob_file.h"
#include "server/hub/model_place.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kOld(40, 'a'), kNew(40, 'b');
// The hashes of "hello": git's SHA-1 of the blob, and SHA-256.
constexpr char kGitHash[] = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
constexpr char kSha256[] = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

class HubCacheTest : public ::testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const HubCache cache_{directory_.path()};
};

TEST_F(HubCacheTest, LinksAreRelativeAndReplaced) {
  ASSERT_TRUE(cache_.Prepare("org/name", kOld).ok());
  for (const char* blob : {"one", "two"}) {
    directory_.Write("models--org--name/blobs/" + std::string(blob), blob);
    ASSERT_TRUE(cache_.Link("org/name", kOld, "config.json", blob).ok());
    ASSERT_TRUE(cache_.Link("org/name", kOld, "folder/x.jinja", blob).ok());
    const fs::path snapshot = cache_.SnapshotOf("org/name", kOld);
    EXPECT_EQ(fs::read_symlink(snapshot / "config.json"), "../../blobs/" + std::string(blob));
    EXPECT_EQ(FileBytes(snapshot / "folder/x.jinja"), blob);
  }
}

TEST_F(HubCacheTest, RefsNameCommits) {
  const HubName name = {"org/name", "refs/pr/1"};
  EXPECT_EQ(cache_.CommitOf(name), std::nullopt);
  ASSERT_TRUE(cache_.WriteRef(name, kOld).ok());
  EXPECT_EQ(cache_.CommitOf(name), kOld);
  ASSERT_TRUE(cache_.WriteRef(name, kNew).ok());
  EXPECT_EQ(FileBytes(directory_.path() / "models--org--name/refs/refs/pr/1"), kNew);
  EXPECT_EQ(cache_.CommitOf({"org/name", kOld}), kOld);
  directory_.Write("models--org--name/refs/main", "../../elsewhere");
  EXPECT_EQ(cache_.CommitOf({"org/name", "main"}), std::nullopt);
}

TEST_F(HubCacheTest, ListsSnapshotsByTheirRefsAndIgnoresOthers) {
  ASSERT_TRUE(cache_.Prepare("b/two", kNew).ok());
  ASSERT_TRUE(cache_.Prepare("a/one", kOld).ok());
  ASSERT_TRUE(cache_.WriteRef({"a/one", "main"}, kOld).ok());
  ASSERT_TRUE(cache_.WriteRef({"a/one", "v1"}, kOld).ok());
  directory_.Write("datasets--c--three/snapshots/" + kOld + "/x", "");
  directory_.Write("models--d--four/snapshots/not-a-commit/x", "");
  std::vector<std::string> names;
  for (const CachedModel& model : cache_.List()) names.push_back(model.name.Text());
  EXPECT_THAT(names, ::testing::ElementsAre("hf:a/one@main", "hf:b/two@" + kNew));
}

TEST_F(HubCacheTest, SnapshotThatIsNotTheNewestIsRecognised) {
  for (const std::string& commit : {kOld, kNew}) ASSERT_TRUE(cache_.Prepare("a/one", commit).ok());
  const fs::path old = cache_.SnapshotOf("a/one", kOld);
  EXPECT_EQ(HubCache::NewerThan(old), std::nullopt);  // no ref
  ASSERT_TRUE(cache_.WriteRef({"a/one", "main"}, kNew).ok());
  EXPECT_EQ(HubCache::NewerThan(old), kNew);
  EXPECT_EQ(HubCache::NewerThan(old / ""), kNew);
  EXPECT_EQ(HubCache::NewerThan(old / ".." / kOld), kNew);
  EXPECT_EQ(HubCache::NewerThan(cache_.SnapshotOf("a/one", kNew)), std::nullopt);
  for (const char* other : {"", "/", "models/demo", "relative"})
    EXPECT_EQ(HubCache::NewerThan(other), std::nullopt) << other;
  ASSERT_TRUE(cache_.WriteRef({"a/one", "v1"}, kOld).ok());
  EXPECT_EQ(HubCache::NewerThan(old), std::nullopt);  // a tag was wanted
}

TEST_F(HubCacheTest, LockWhoseFileIsGoneIsTakenAgain) {
  ASSERT_TRUE(cache_.Prepare("org/name", kOld).ok());
  const auto never = [] { FAIL() << "no other process holds it"; };
  const fs::path path = directory_.path() / ".locks/models--org--name/etag.lock";
  {
    const Result<BlobLock> lock = cache_.Lock("org/name", "etag", never);
    ASSERT_TRUE(lock.ok());
    fs::remove(path);
  }
  const Result<BlobLock> lock = cache_.Lock("org/name", "etag", never);
  EXPECT_TRUE(lock.ok());
  EXPECT_TRUE(fs::exists(path));
}

// Where others may write, what they plant in a file's place is neither followed nor written to.
TEST_F(HubCacheTest, PlantedLinksAreNotFollowed) {
  ASSERT_TRUE(cache_.Prepare("org/name", kOld).ok());
  const fs::path target = directory_.path() / "target";
  const fs::path refs = directory_.path() / "models--org--name/refs";
  fs::create_directories(refs);
  fs::create_symlink(target, refs / ("main." + std::to_string(getpid()) + ".tmp"));
  fs::create_symlink(target, refs / "main");
  ASSERT_TRUE(cache_.WriteRef({"org/name", "main"}, kNew).ok());
  EXPECT_EQ(cache_.CommitOf({"org/name", "main"}), kNew);
  EXPECT_FALSE(fs::is_symlink(refs / "main"));
  fs::create_symlink(target, directory_.path() / ".locks/models--org--name/etag.lock");
  EXPECT_FALSE(cache_.Lock("org/name", "etag", [] {}).ok());
  const fs::path snapshot = cache_.SnapshotOf("org/name", kOld);
  fs::create_symlink(target, snapshot / ("x." + std::to_string(getpid()) + ".tmp"));
  ASSERT_TRUE(cache_.Link("org/name", kOld, "x", "etag").ok());
  EXPECT_EQ(fs::read_symlink(snapshot / "x"), "../../blobs/etag");
  EXPECT_FALSE(fs::exists(target));
}

TEST_F(HubCacheTest, DirectoriesInTheWayAreErrorsAndNothingIsLeft) {
  const fs::path refs = directory_.path() / "models--org--name/refs";
  fs::create_directories(refs / "main");
  EXPECT_FALSE(cache_.WriteRef({"org/name", "main"}, kNew).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(refs), {}), 1);
  fs::create_directories(directory_.path() / ".locks/models--org--name/etag.lock");
  EXPECT_FALSE(cache_.Lock("org/name", "etag", [] {}).ok());
}

class BlobFileTest : public ::testing::TestWithParam<const char*> {
 protected:
  Result<std::unique_ptr<BlobFile>> Open() const {
    return BlobFile::Open(blob(), {"x", 5, hash()});
  }
  std::string hash() const { return GetParam(); }
  fs::path blob() const { return directory_.path() / hash(); }
  fs::path incomplete() const { return blob().string() + ".incomplete"; }

  const TemporaryDirectory directory_;
};
INSTANTIATE_TEST_SUITE_P(Hashes, BlobFileTest, ::testing::Values(kGitHash, kSha256));

TEST_P(BlobFileTest, GoesOnWhereAnEarlierAttemptStopped) {
  {
    ASSERT_TRUE((*Open())->Append("hel").ok());
  }
  EXPECT_FALSE(fs::exists(blob()));
  const auto file = Open();
  EXPECT_EQ((*file)->missing(), 2u);
  ASSERT_TRUE((*file)->Append("lo").ok());
  const Result<bool> finished = (*file)->Finish();
  EXPECT_TRUE(finished.ok() && *finished);
  EXPECT_EQ(FileBytes(blob()), "hello");
  EXPECT_FALSE(fs::exists(incomplete()));
}

TEST_P(BlobFileTest, BytesOfAnotherHashAreDropped) {
  const auto file = Open();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE((*file)->Append("jello").ok());
    const Result<bool> finished = (*file)->Finish();
    EXPECT_TRUE(finished.ok() && !*finished);
    EXPECT_EQ((*file)->missing(), 5u);
    EXPECT_FALSE(fs::exists(blob()));
  }
  ASSERT_TRUE((*file)->Append("hello").ok());
  EXPECT_TRUE(*(*file)->Finish());
}

TEST_P(BlobFileTest, PartThatIsLongerThanTheFileIsDropped) {
  WriteFile(incomplete(), "hello and more");
  EXPECT_EQ((*Open())->missing(), 5u);
}

TEST_P(BlobFileTest, LinkInItsPlaceIsNotFollowed) {
  fs::create_symlink(directory_.path() / "elsewhere", incomplete());
  EXPECT_FALSE(Open().ok());
  EXPECT_FALSE(fs::exists(directory_.path() / "elsewhere"));
}

TEST_P(BlobFileTest, PipeAndFileWithASecondNameAreRefused) {
  ASSERT_EQ(mkfifo(incomplete().c_str(), 0666), 0);
  EXPECT_THAT(Open().status().message(), HasSubstr("no regular file"));
  fs::remove(incomplete());
  WriteFile(directory_.path() / "other", "kept");
  fs::create_hard_link(directory_.path() / "other", incomplete());
  EXPECT_FALSE(Open().ok());
  EXPECT_EQ(FileBytes(directory_.path() / "other"), "kept");
}

class BundledModelTest : public ::testing::Test {
 protected:
  BundledModelTest() {
    for (const char* model : {"usr/share/diffserve/models/demo", "models/demo/diff"})
      directory_.Write(std::string(model) + "/config.json", "{}");
    for (const char* program : {"usr/bin/diffserve", "build/dev/server/diffserve"})
      directory_.Write(program, "");
  }

  const TemporaryDirectory directory_;
  const fs::path root_ = fs::canonical(directory_.path());
};

TEST_F(BundledModelTest, IsFoundBesideAnInstalledAndABuiltProgramByBothNames) {
  for (const char* name : {"diff", "demo"}) {
    EXPECT_EQ(*FindBundled({name}, root_ / "usr/bin/diffserve"),
              (root_ / "usr/share/diffserve/models/demo").string());
    EXPECT_EQ(*FindBundled({name}, root_ / "build/dev/server/diffserve"),
              (root_ / "models/demo/diff").string());
  }
}

// The test program finds the models of the tree that built it.
TEST_F(BundledModelTest, IsServedUnderBothNames) {
  const auto bundled = [](const char* name) { return *FindBundled({name}, "/proc/self/exe"); };
  EXPECT_THAT(NamesOfDirectory(bundled("diff") + "/"), ElementsAre("diff", "demo"));
  EXPECT_THAT(NamesOfDirectory(bundled("twin")), ElementsAre("twin"));
  const std::string copied = (root_ / "models/demo/diff").string();
  EXPECT_THAT(NamesOfDirectory(copied), ElementsAre("diff")) << "another model of this name";
}

TEST_F(BundledModelTest, LinksToTheProgramAreFollowed) {
  fs::create_symlink(root_ / "usr/bin/diffserve", root_ / "link");
  EXPECT_EQ(*FindBundled({"diff"}, root_ / "link"),
            (root_ / "usr/share/diffserve/models/demo").string());
}

TEST_F(BundledModelTest, AnotherNameListsThoseThatAreThere) {
  const Result<std::string> other = FindBundled({"other"}, root_ / "usr/bin/diffserve");
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.status().message(), HasSubstr("allowed: bundled:diff"));
  const Result<std::string> none = FindBundled({"diff"}, root_ / "link/bin/diffserve");
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.status().message(), HasSubstr("no model came with"));
}

TEST_F(BundledModelTest, NameThatIsNoDirectoryTellsWhatItMayMean) {
  LoadProgress progress([](const char*, uint64_t, uint64_t) {}, {});
  const Result<std::string> on_the_hub = FindModel("kajuma/DiffLlama-1B", FileUse::kRun, progress);
  ASSERT_FALSE(on_the_hub.ok());
  EXPECT_EQ(on_the_hub.status().message(),
            "MODEL_DIR is \"kajuma/DiffLlama-1B\", which is no directory; did you mean "
            "hf:kajuma/DiffLlama-1B?");
  const Result<std::string> bundled = FindModel("twin", FileUse::kRun, progress);
  ASSERT_FALSE(bundled.ok());
  EXPECT_THAT(bundled.status().message(), HasSubstr("did you mean bundled:twin?"));
}

TEST_F(BundledModelTest, OtherDirectoriesStayAsTheyAre) {
  LoadProgress progress([](const char*, uint64_t, uint64_t) {}, {});
  for (const std::string name : {"other", "./demo", "demo/", "/models/demo"})
    EXPECT_EQ(*FindModel(name, FileUse::kRun, progress), name);
}

}  // namespace
}  // namespace diffserve
