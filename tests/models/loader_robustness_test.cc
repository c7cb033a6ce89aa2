// SPDX-License-Identifier: Apache-2.0
// Damaged checkpoints of every family: refused by one line with little memory, or loaded and served
// if only weights differ; never a crash. This is a sample: cuts at every 61st byte of the first 4
// KiB and at every edge, 80 flipped bits of a file and 80 of its header. `loader_robustness`
// (tests/robustness) takes every position, 10,000 bits, and a limited process for each case.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>

#include "models/checkpoint.h"
#include "tests/testing/models/damaged_json.h"
#include "tests/testing/models/load_outcome.h"

// Memory is measured at the allocator: every operator new of this program is counted. Sanitizers
// have their own allocators, so there only the outcome is checked.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsMemory = false;
std::atomic<size_t> live_bytes = 0, peak_bytes = 0;
#else
constexpr bool kCountsMemory = true;
std::atomic<size_t> live_bytes = 0, peak_bytes = 0;

namespace {

// Before each allocation; keeps the largest alignment requested.
constexpr size_t kSizeBytes = 64;

void* Allocate(size_t size) {
  std::byte* memory = static_cast<std::byte*>(
      std::aligned_alloc(kSizeBytes, (size + 2 * kSizeBytes - 1) / kSizeBytes * kSizeBytes));
  if (memory == nullptr) throw std::bad_alloc();
  *reinterpret_cast<size_t*>(memory) = size;
  const size_t live = live_bytes += size;
  size_t peak = peak_bytes;
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return memory + kSizeBytes;
}

void Free(void* pointer) {
  if (pointer == nullptr) return;
  std::byte* memory = static_cast<std::byte*>(pointer) - kSizeBytes;
  live_bytes -= *reinterpret_cast<size_t*>(memory);
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* pointer) noexcept { Free(pointer); }
void operator delete[](void* pointer) noexcept { Free(pointer); }
void operator delete(void* pointer, size_t) noexcept { Free(pointer); }
void operator delete[](void* pointer, size_t) noexcept { Free(pointer); }
#endif

namespace diffserve {
namespace {

constexpr size_t kCutStride = 61;
constexpr size_t kFlips = 80;
constexpr size_t kFixedBytes = 256 << 10;  // for a load that finds nothing to read

// Drops root's rights, which override every file mode, for its lifetime.
class AsUnprivilegedUser {
 public:
  explicit AsUnprivilegedUser(bool wanted)
      : active_(wanted && geteuid() == 0 && seteuid(65534) == 0) {}
  ~AsUnprivilegedUser() {
    if (active_ && seteuid(0) != 0) std::abort();
  }

 private:
  const bool active_;
};

// The part of a damaged directory that is read before its weights: headers, as far as they exist,
// and JSON.
struct TextBytes {
  size_t header = 0, json = 0;
};
TextBytes MeasureText(const DamagedCopy& copy) {
  TextBytes bytes;
  for (const auto& entry : std::filesystem::directory_iterator(copy.dir())) {
    std::error_code none;
    if (!entry.is_regular_file(none) || entry.is_symlink(none)) continue;
    if (entry.path().extension() == ".json") bytes.json += entry.file_size();
    if (entry.path().extension() == ".json") continue;
    uint64_t length = 0;
    std::ifstream(entry.path(), std::ios::binary)
        .read(reinterpret_cast<char*>(&length), sizeof(length));
    bytes.header += std::min<uint64_t>(length + 8, entry.file_size());
  }
  return bytes;
}

class LoaderRobustnessTest : public ::testing::TestWithParam<CheckpointToDamage> {
 protected:
  // Loads the directory with each of the damages.
  void TryAll(const std::vector<Damage>& damages) {
    EXPECT_FALSE(damages.empty());
    for (const Damage& damage : damages) {
      damage.apply(copy_);
      const TextBytes text = MeasureText(copy_);
      peak_bytes = live_bytes.load();
      const size_t before = live_bytes;
      LoadOutcome outcome;
      {
        const AsUnprivilegedUser unprivileged(damage.as_unprivileged_user);
        outcome = LoadAndAnswer(copy_.dir(), pool_);
      }
      const size_t peak = peak_bytes - before;
      const std::string problem = ProblemOf(outcome, damage, copy_.dir());
      EXPECT_EQ(problem, "") << damage.name;
      // A JSON text is temporarily a tree: 16 bytes and more per value, so "1," takes ten times its
      // size.
      const size_t allowed = 2 * text.header + 20 * text.json + kFixedBytes;
      if (kCountsMemory && !outcome.loaded) {
        EXPECT_LE(peak, allowed) << damage.name << ", header " << text.header << ", JSON "
                                 << text.json;
      }
      outcome.loaded ? ++loaded_ : ++refused_;
      copy_.Restore();
      failures_ += !problem.empty();
      if (failures_ > 20) return;
    }
  }
  // Required of the copy before and after damage.
  void ExpectGood() { EXPECT_EQ(LoadAndAnswer(copy_.dir(), pool_).line, ""); }

  std::vector<std::string> JsonFiles() const {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : copy_.good()) {
      if (name.ends_with(".json")) names.push_back(name);
    }
    return names;
  }

  DamagedCopy copy_{GetParam().dir, GetParam().two_shards};
  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
  int loaded_ = 0, refused_ = 0, failures_ = 0;
};

TEST_P(LoaderRobustnessTest, TruncatedFileIsRefused) {
  ExpectGood();
  for (const auto& [name, bytes] : copy_.good()) TryAll(Cuts(copy_, name, kCutStride));
  EXPECT_EQ(loaded_, 0);
  ExpectGood();
}

TEST_P(LoaderRobustnessTest, FlippedBitsAreRefusedOrServed) {
  for (const auto& [name, bytes] : copy_.good()) TryAll(Flips(copy_, name, kFlips, 18));
  EXPECT_GT(refused_, 80);
  EXPECT_GT(loaded_, 80);
  ExpectGood();
}

TEST_P(LoaderRobustnessTest, HeaderThatContradictsTheFileIsRefused) {
  TryAll(LyingHeaders(copy_, copy_.TensorFiles().back()));
  EXPECT_GT(refused_, 20);
  ExpectGood();
}

TEST_P(LoaderRobustnessTest, AnyValueOfTheConfigurationIsRefusedOrServed) {
  TryAll(WrongValues(copy_, "config.json"));
  TryAll(WrongValues(copy_, "generation_config.json"));
  EXPECT_GT(refused_, 50);
  ExpectGood();
}

std::string ParamName(const ::testing::TestParamInfo<CheckpointToDamage>& info) {
  return info.param.family + (info.param.two_shards ? "_shards" : "_file");
}
INSTANTIATE_TEST_SUITE_P(Families, LoaderRobustnessTest, ::testing::ValuesIn(CheckpointsToDamage()),
                         ParamName);

// Tests that do not depend on the family use one checkpoint.
class LoaderFilesTest : public LoaderRobustnessTest {};

TEST_P(LoaderFilesTest, HeaderOfWrongFormOrLengthIsRefused) {
  std::vector<Damage> damages = BrokenHeaders(copy_, copy_.TensorFiles().back());
  // Only some of the cases of 100 MB, which take most of this program's time.
  std::erase_if(damages, [](const Damage& damage) {
    const bool kept = damage.name.ends_with("100 MB of spaces") ||
                      damage.name.ends_with("spaces up to 100 MB");
    return damage.name.find("100 MB") != std::string::npos && (GetParam().two_shards || !kept);
  });
  TryAll(damages);
  EXPECT_GT(refused_, 10);
}

TEST_P(LoaderFilesTest, UnreadableFileIsRefused) {
  for (const auto& [name, bytes] : copy_.good()) {
    if (name != "generation_config.json") TryAll(NoFiles(name));  // which may be missing
  }
  EXPECT_EQ(loaded_, 0);
  EXPECT_GT(refused_, 20);
}

TEST_P(LoaderFilesTest, BrokenJsonIsRefused) {
  for (const std::string& name : JsonFiles()) TryAll(BrokenJson(name));
  EXPECT_EQ(loaded_, 0);
  EXPECT_GT(refused_, 10);
}

// One file, and two shards with an index.
std::vector<CheckpointToDamage> OneFamily() {
  std::vector<CheckpointToDamage> checkpoints = CheckpointsToDamage();
  std::erase_if(checkpoints, [](const CheckpointToDamage& c) { return c.family != "diff"; });
  return checkpoints;
}
INSTANTIATE_TEST_SUITE_P(OneFamily, LoaderFilesTest, ::testing::ValuesIn(OneFamily()), ParamName);

class LoaderIndexTest : public LoaderRobustnessTest {};

TEST_P(LoaderIndexTest, IndexThatContradictsTheFilesIsRefused) {
  ASSERT_TRUE(copy_.good().contains(kIndexName));
  TryAll(LyingIndexes(copy_));
  EXPECT_GT(refused_, 20);
}

std::vector<CheckpointToDamage> WithIndex() {
  std::vector<CheckpointToDamage> checkpoints = OneFamily();
  std::erase_if(checkpoints, [](const CheckpointToDamage& c) { return !c.two_shards; });
  return checkpoints;
}
INSTANTIATE_TEST_SUITE_P(OneFamily, LoaderIndexTest, ::testing::ValuesIn(WithIndex()), ParamName);

// A header of many tensors, all valid, takes the most memory for its size.
TEST(LoaderMemoryTest, HeaderTakesLessThanTwiceItsSize) {
  for (const bool long_names : {false, true}) {
    const TemporaryDirectory directory;
    std::string json = "{";
    for (int i = 0; i < 65'536; ++i) {
      const std::string name = std::to_string(i) + std::string(long_names ? 200 : 0, 'x');
      json += (i > 0 ? ",\"" : "\"") + name +
              "\":{\"dtype\":\"F4\",\"shape\":[0],\"data_offsets\":[0,0]}";
    }
    json += "}";
    WriteFile(directory.path() / "model.safetensors", SafetensorsHeaderBytes(json));
    peak_bytes = live_bytes.load();
    const size_t before = live_bytes;
    const auto checkpoint = Checkpoint::Open(directory.path().string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_TRUE((*checkpoint)->Has("65535" + std::string(long_names ? 200 : 0, 'x')));
    if (kCountsMemory) {
      EXPECT_GT(peak_bytes - before, json.size());
      EXPECT_LE(peak_bytes - before, 2 * json.size());
    }
  }
}

}  // namespace
}  // namespace diffserve
