// SPDX-License-Identifier: Apache-2.0
// A model's files are replaced in every way, before each open and each read of a start. Pages of
// the prefix cache on disk may be used by a server with the same fingerprint: two models with one
// fingerprint must compute the same bits.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/app/session/kv_disk.h"
#include "server/app/session/model_session.h"
#include "tests/faults/file_watch.h"
#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve::testing {
namespace {

namespace fs = std::filesystem;

constexpr char kWeights[] = "model.safetensors", kConfig[] = "config.json";

// Writes over the file, and sets its times of access and modification to those before.
void WriteInPlace(const fs::path& path, const std::string& bytes) {
  const int fd = open(path.c_str(), O_WRONLY);
  struct stat before{};
  EXPECT_EQ(fstat(fd, &before), 0);
  EXPECT_EQ(pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes.size())), 0);
  const timespec times[] = {before.st_atim, before.st_mtim};
  EXPECT_EQ(futimens(fd, times), 0);
  close(fd);
}

// A file with another inode and the old one's times, as `tar --mtime` unpacks it.
void Unpack(const fs::path& path, const std::string& bytes) {
  struct stat before{};
  EXPECT_EQ(stat(path.c_str(), &before), 0);
  fs::remove(path);
  WriteFile(path, bytes);
  const timespec times[] = {before.st_atim, before.st_mtim};
  EXPECT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

void RenameOver(const fs::path& path, const std::string& bytes) {
  const fs::path other = path.string() + ".new";
  WriteFile(other, bytes);
  fs::rename(other, path);
}

void WriteAgain(const fs::path& path, const std::string& bytes) { WriteFile(path, bytes); }

// A link to a file elsewhere, as in Hugging Face's cache.
void LinkTo(const fs::path& path, const std::string& bytes) {
  const fs::path blob = path.string() + ".blob";
  WriteFile(blob, bytes);
  fs::remove(path);
  fs::create_symlink(blob, path);
}

struct WayToReplace {
  const char* name;
  void (*replace)(const fs::path& path, const std::string& bytes);
};
constexpr WayToReplace kWays[] = {{"in place with the old times", WriteInPlace},
                                  {"in place", WriteAgain},
                                  {"unpacked with the old times", Unpack},
                                  {"renamed over", RenameOver},
                                  {"linked", LinkTo}};

class ReplacedModelTest : public ::testing::Test {
 protected:
  ReplacedModelTest() {
    TinyCheckpointOptions tiny;
    SetFiles(old_, tiny);
    tiny.seed = 2;
    tiny.config_changes["rope_theta"] = "500.0";
    SetFiles(new_, tiny);
  }

  using Files = std::map<std::string, std::string>;  // by name
  static void SetFiles(Files& files, const TinyCheckpointOptions& tiny) {
    files[kConfig] = TinyConfigJson(tiny);
    files[kWeights] = SafetensorsBytes(TinyTensors(tiny));
  }
  void PutOld() const {
    for (const auto& [name, bytes] : old_) {
      fs::remove(model_.path() / name);
      model_.Write(name, bytes);
    }
  }

  struct Started {
    std::string fingerprint;
    std::vector<float> logits;
  };
  // The start of a server; nullopt: it was refused.
  std::optional<Started> Start() const {
    SessionOptions options;
    options.model_dir = model_.path();
    options.threads = 1;
    options.engine.max_model_len = 64;
    options.kv_cache_memory = {"1MiB", 1 << 20};
    Result<SessionPlan> plan = PlanSession(options, ServerNeeds(options.engine));
    if (!plan.ok()) return std::nullopt;
    plan->model.digest = std::make_shared<WeightDigest>();
    Result<std::unique_ptr<ModelSession>> session = ModelSession::Load(options,
                                                                       std::move(plan).value());
    if (!session.ok()) return std::nullopt;
    const int32_t pages[] = {0};
    Batch batch;
    batch.tokens = {5, 9, 3, 7, 1};
    batch.sequences = {{0, 5, 0, pages}};
    batch.logit_rows = {4};
    EXPECT_TRUE((*session)->model().Forward(batch, (*session)->kv()).ok());
    const std::span<const float> logits = (*session)->model().Logits(0, 1).value();
    const Fingerprint fingerprint = KvDiskFingerprint((*session)->plan());
    return Started{
        std::string(reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size()),
        std::vector<float>(logits.begin(), logits.end())};
  }

  TemporaryDirectory model_;
  Files old_, new_;
};

TEST_F(ReplacedModelTest, EqualFingerprintsMeanEqualBits) {
  PutOld();
  std::map<std::string, std::vector<float>> bits;  // of each fingerprint
  const auto check = [&](const Started& started) {
    const auto [known, is_new] = bits.try_emplace(started.fingerprint, started.logits);
    EXPECT_TRUE(is_new || known->second == started.logits);
    return is_new;
  };
  WatchFiles(0, {});
  const std::optional<Started> first = Start();
  const int num_calls = UnwatchFiles();
  ASSERT_TRUE(first);
  check(*first);
  ASSERT_GT(num_calls, 20);

  int num_started = 0, num_mixed = 0;
  for (const WayToReplace& way : kWays) {
    for (const char* name : {kWeights, kConfig}) {
      for (int call = 1; call <= num_calls; ++call) {
        SCOPED_TRACE(std::string(name) + " " + way.name + " before call " + std::to_string(call));
        PutOld();
        WatchFiles(call, [&] { way.replace(model_.path() / name, new_[name]); });
        const std::optional<Started> during = Start();
        EXPECT_GE(UnwatchFiles(), during ? call : 0);
        if (during) num_mixed += check(*during);
        num_started += during.has_value();
        const std::optional<Started> after = Start();
        ASSERT_TRUE(after);
        check(*after);
        EXPECT_NE(after->logits, first->logits);
      }
    }
  }
  EXPECT_GT(num_started, num_calls);
  EXPECT_GT(num_mixed, 0);  // some ran weights of both files
}

}  // namespace
}  // namespace diffserve::testing
