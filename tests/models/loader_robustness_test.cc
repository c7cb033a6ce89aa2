// Damaged checkpoints of every family: refused by one line in little memory, or loaded and answered
// from where only weights differ; never a crash. A sample: every 61st of the first 4 KiB as a cut
// and every edge, 80 flipped bits of a file and 80 of its header. `loader_robustness`
// (tests/robustness) takes every place, 10,000 bits, and a process with limits for each case.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "models/checkpoint.h"
#include "tests/testing/damaged_json.h"
#include "tests/testing/load_outcome.h"

// Memory is measured at the allocator: every operator new of this program is counted. Sanitizers
// have allocators of their own, and there only the outcome is looked at.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsMemory = false;
std::atomic<size_t> live_bytes = 0, peak_bytes = 0;
#else
constexpr bool kCountsMemory = true;
std::atomic<size_t> live_bytes = 0, peak_bytes = 0;

namespace {

constexpr size_t kSizeBytes = 64;  // in front of each allocation, keeping the largest alignment
                                   // that is asked for

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
constexpr size_t kFixedBytes = 256 << 10;  // of a load that finds nothing to read

// Gives up root's rights, which no file mode withstands, while it lives.
class AsNobody {
 public:
  explicit AsNobody(bool wanted) : active_(wanted && geteuid() == 0 && seteuid(65534) == 0) {}
  ~AsNobody() {
    if (active_ && seteuid(0) != 0) std::abort();
  }

 private:
  const bool active_;
};

// What a damaged directory holds that is read before its weights: headers, as far as they are
// there, and JSON.
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

class LoaderRobustnessTest : public testing::TestWithParam<CheckpointToDamage> {
 protected:
  // Loads the directory under each of the damages.
  void TryAll(const std::vector<Damage>& damages) {
    for (const Damage& damage : damages) {
      damage.apply(copy_);
      const TextBytes text = MeasureText(copy_);
      peak_bytes = live_bytes.load();
      const size_t before = live_bytes;
      LoadOutcome outcome;
      {
        const AsNobody nobody(damage.as_nobody);
        outcome = LoadAndAnswer(copy_.dir(), pool_);
      }
      const size_t peak = peak_bytes - before;
      const std::string problem = ProblemOf(outcome, damage, copy_.dir());
      EXPECT_EQ(problem, "") << damage.name;
      // A JSON text is a tree for a while: 16 bytes and more a value, so that "1," takes ten times
      // its size.
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
  // What the copy must do before damage and after it.
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

TEST_P(LoaderRobustnessTest, AFileThatEndsTooSoonIsRefused) {
  ExpectGood();
  for (const auto& [name, bytes] : copy_.good()) TryAll(Cuts(copy_, name, kCutStride));
  EXPECT_EQ(loaded_, 0);
  ExpectGood();
}

TEST_P(LoaderRobustnessTest, FlippedBitsOfWeightsAreServedAndOthersRefusedOrRead) {
  for (const auto& [name, bytes] : copy_.good()) TryAll(Flips(copy_, name, kFlips, 18));
  EXPECT_GT(refused_, 80);
  EXPECT_GT(loaded_, 80);
  ExpectGood();
}

TEST_P(LoaderRobustnessTest, AHeaderThatLiesIsRefused) {
  TryAll(LyingHeaders(copy_, copy_.TensorFiles().back()));
  ExpectGood();
}

TEST_P(LoaderRobustnessTest, AnyValueOfTheConfigurationIsRefusedOrServed) {
  TryAll(WrongValues(copy_, "config.json"));
  TryAll(WrongValues(copy_, "generation_config.json"));
  EXPECT_GT(refused_, 50);
  ExpectGood();
}

std::string ParamName(const testing::TestParamInfo<CheckpointToDamage>& info) {
  return info.param.family + (info.param.two_shards ? "_shards" : "_file");
}
INSTANTIATE_TEST_SUITE_P(Families, LoaderRobustnessTest, testing::ValuesIn(CheckpointsToDamage()),
                         ParamName);

// What no family has a part in: one checkpoint stands for all.
class LoaderFilesTest : public LoaderRobustnessTest {};

TEST_P(LoaderFilesTest, AHeaderOfWrongFormOrLengthIsRefused) {
  std::vector<Damage> damages = BrokenHeaders(copy_, copy_.TensorFiles().back());
  // Some of those of 100 MB, once: they take most of the time of this program.
  std::erase_if(damages, [](const Damage& damage) {
    const bool kept = damage.name.ends_with("100 MB of spaces") ||
                      damage.name.ends_with("spaces up to 100 MB");
    return damage.name.find("100 MB") != std::string::npos && (GetParam().two_shards || !kept);
  });
  TryAll(damages);
}

TEST_P(LoaderFilesTest, WhatIsNoReadableFileIsRefused) {
  for (const auto& [name, bytes] : copy_.good()) {
    if (name != "generation_config.json") TryAll(NoFiles(name));  // which may be missing
  }
  EXPECT_EQ(loaded_, 0);
}

TEST_P(LoaderFilesTest, BrokenJsonIsRefused) {
  for (const std::string& name : JsonFiles()) TryAll(BrokenJson(name));
  EXPECT_EQ(loaded_, 0);
}

TEST_P(LoaderFilesTest, AnIndexThatLiesIsRefused) {
  if (copy_.good().contains(kIndexName)) TryAll(LyingIndexes(copy_));
}

std::vector<CheckpointToDamage> OneFamily() {
  std::vector<CheckpointToDamage> checkpoints = CheckpointsToDamage();
  std::erase_if(checkpoints, [](const CheckpointToDamage& c) { return c.family != "diff"; });
  return checkpoints;
}
INSTANTIATE_TEST_SUITE_P(OneFamily, LoaderFilesTest, testing::ValuesIn(OneFamily()), ParamName);

// A header of many tensors, all of them good, is what takes the most memory for its size.
TEST(LoaderMemoryTest, AHeaderTakesLessThanTwiceItsSize) {
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
