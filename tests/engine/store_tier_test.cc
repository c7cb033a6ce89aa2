// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/store_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "engine/engine.h"
#include "engine/page_store/page_store.h"
#include "engine/page_store/store_directory.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_executor.h"
#include "tests/testing/engine/step_gate.h"
#include "tests/testing/kernels/eventually.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using testing::FakeExecutor;

EngineOptions TierOptions() {
  EngineOptions options = testing::SmallEngine();
  options.num_pages = 24;
  return options;
}

// An engine whose pages survive it in a directory. A gate holds the transfer of each page.
class EngineWithTier {
 public:
  explicit EngineWithTier(const std::filesystem::path& directory,
                          const EngineOptions& options = TierOptions(),
                          testing::StepGate* gate = nullptr) {
    auto executor = std::make_unique<FakeExecutor>(options);
    Result<std::unique_ptr<PageStore>> store = PageStore::Open(
        {.directory = directory.string(), .max_bytes = 16 << 20, .segment_bytes = 1 << 20});
    EXPECT_TRUE(store.ok()) << store.status().message();
    FakeExecutor* const fake = executor.get();
    auto tier = std::make_unique<StoreTier>(
        std::move(store).value(), [fake, gate](const TierEntry& entry) {
          if (gate != nullptr) gate->Pass();
          std::vector<iovec> parts;
          for (const std::span<uint64_t> part : fake->Content(entry))
            parts.push_back({part.data(), part.size_bytes()});
          return parts;
        });
    engine_ = std::make_unique<Engine>(
        options, std::move(executor), [this](TokenEvent event) { Take(std::move(event)); }, nullptr,
        std::move(tier));
  }

  struct Answer {
    std::vector<int32_t> tokens;
    int cached_tokens = 0, loaded_tokens = 0;
    bool ended = false;
  };
  // Runs the request to its end.
  Answer Ask(const Request& request) {
    EXPECT_TRUE(engine_->Submit(request).ok());
    return Await(request.id);
  }
  Answer Await(RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return answers_[id].ended; });
    return answers_[id];
  }
  // Resets the cache before it returns.
  void Reset(CacheReset which) {
    engine_->ResetPrefixCache(which);
    // Its request is taken after the reset. It has no full page, so it is neither found nor kept.
    Ask(testing::MakeRequest(last_reset_++, 2, 1));
  }
  Engine& engine() { return *engine_; }

 private:
  void Take(TokenEvent event) {
    const std::lock_guard lock(mutex_);
    Answer& answer = answers_[event.request];
    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
    answer.cached_tokens = event.cached_tokens;
    answer.loaded_tokens = event.loaded_tokens;
    answer.ended |= event.finish != FinishReason::kNone;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Answer> answers_;
  RequestId last_reset_ = 1000;
  std::unique_ptr<Engine> engine_;
};

// Entries that Append only takes, and that WriteBehind takes its time for.
class SlowlyWritten : public EntryStore {
 public:
  explicit SlowlyWritten(std::atomic<int>& waiting) : waiting_(waiting) {}
  bool Contains(const RecordKey&) const override { return false; }
  Status Append(const RecordKey&, std::span<const int32_t>, std::span<const iovec>) override {
    ++waiting_;
    return {};
  }
  std::optional<Status> WriteBehind() override {
    if (waiting_ == 0) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    --waiting_;
    return Status();
  }
  bool HasUnwritten() const override { return waiting_ > 0; }
  Status Read(const RecordKey&, std::span<const int32_t>, std::span<const iovec>) override {
    return Status(StatusCode::kNotFound, "nothing is read");
  }
  void Erase(const RecordKey&) override {}
  void Clear() override {}
  int64_t bytes() const override { return 0; }
  int64_t max_bytes() const override { return 0; }
  size_t num_records() const override { return 0; }

 private:
  std::atomic<int>& waiting_;
};

TEST(StoreTierTest, EngineThatEndsWritesWhatWasOnlyTaken) {
  std::atomic<int> waiting = 0;
  const EngineOptions options = TierOptions();
  std::promise<void> ended;
  {
    Engine engine(
        options, std::make_unique<FakeExecutor>(options),
        [&](const TokenEvent& event) {
          if (event.finish != FinishReason::kNone) ended.set_value();
        },
        nullptr,
        std::make_unique<StoreTier>(std::make_unique<SlowlyWritten>(waiting),
                                    [](const TierEntry&) { return std::vector<iovec>(); }));
    EXPECT_TRUE(engine.Submit(testing::MakeRequest(1, 50, 10)).ok());
    ended.get_future().wait();
    EXPECT_TRUE(testing::Eventually([&] { return engine.Snapshot().tier->pages_written >= 12; }));
    EXPECT_GT(waiting, 0);
  }
  EXPECT_EQ(waiting, 0);
}

std::string FirstSegment(const std::filesystem::path& directory) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().extension() == kSegmentSuffix) return entry.path().string();
  }
  return {};
}

TEST(StoreTierTest, PrefixIsFoundByTheNextEngine) {
  const TemporaryDirectory directory;
  const Request request = testing::MakeRequest(1, 50, 10);
  EXPECT_EQ(EngineWithTier(directory.path()).Ask(request).cached_tokens, 0);
  EngineWithTier later(directory.path());
  const auto answer = later.Ask(request);
  EXPECT_EQ(answer.cached_tokens, 48);
  EXPECT_EQ(answer.tokens, FakeExecutor::Continue(request));
  const EngineStats stats = later.engine().Snapshot();
  EXPECT_EQ(stats.tier_hits, 48u);
  EXPECT_EQ(stats.tier->pages_read, 12u);
}

TEST(StoreTierTest, PrefixIsFoundByAnEngineBesideTheOneThatComputedIt) {
  const TemporaryDirectory directory;
  EngineWithTier first(directory.path());
  const Request request = testing::MakeRequest(1, 50, 10);
  first.Ask(request);
  ASSERT_TRUE(testing::Eventually([&] { return first.engine().Snapshot().tier->pages >= 12; }));
  EngineWithTier second(directory.path());
  const auto answer = second.Ask(request);
  EXPECT_EQ(answer.loaded_tokens, 48);
  EXPECT_EQ(answer.tokens, FakeExecutor::Continue(request));
  EXPECT_EQ(second.engine().Snapshot().tier->sibling_pages, first.engine().Snapshot().tier->pages);
}

TEST(StoreTierTest, PrefixThatWasEvictedFromMemoryIsFound) {
  const TemporaryDirectory directory;
  EngineWithTier engine(directory.path());
  const Request request = testing::MakeRequest(1, 50, 10);
  engine.Ask(request);
  ASSERT_TRUE(testing::Eventually([&] { return engine.engine().Snapshot().tier->pages >= 12; }));
  for (RequestId id = 2; id < 8; ++id)
    engine.Ask(testing::MakeRequest(id, 60, 10, static_cast<int>(id) * 70));
  Request again = request;
  again.id = 100;
  const auto answer = engine.Ask(again);
  EXPECT_EQ(answer.tokens, FakeExecutor::Continue(again));
  EXPECT_EQ(answer.cached_tokens, 48);
  EXPECT_EQ(engine.engine().Snapshot().tier_hits, 48u);
}

// The same for a model with states and windows.
EngineOptions TierOptionsWithStates() {
  EngineOptions options = TierOptions();
  options.window = 6;
  options.num_state_slots = 2 * options.MaxRunning();
  options.num_window_pages = static_cast<int>(options.WindowPagesMin(options.MaxRunning()) +
                                              8 * options.WindowPagesPerSequence());
  options.state_snapshot_interval = 4 * options.page_size;
  return options;
}

TEST(StoreTierTest, SnapshotIsFoundByTheNextEngineAndReadOnce) {
  const TemporaryDirectory directory;
  const Request request = testing::MakeRequest(1, 50, 10);
  EXPECT_EQ(EngineWithTier(directory.path(), TierOptionsWithStates()).Ask(request).cached_tokens,
            0);
  EngineWithTier later(directory.path(), TierOptionsWithStates());
  for (RequestId id = 2; id < 4; ++id) {
    Request again = request;
    again.id = id;
    const auto answer = later.Ask(again);
    EXPECT_EQ(answer.cached_tokens, 48);
    EXPECT_EQ(answer.loaded_tokens, id == 2 ? 48 : 0);
    EXPECT_EQ(answer.tokens, FakeExecutor::Continue(again));
    EXPECT_EQ(later.engine().Snapshot().tier->pages_read, 13u) << "twelve pages and a snapshot";
  }
}

TEST(StoreTierTest, DamagedSnapshotIsAMissAndThePagesAreComputed) {
  const TemporaryDirectory directory;
  const Request request = testing::MakeRequest(1, 50, 10);
  EngineWithTier(directory.path(), TierOptionsWithStates()).Ask(request);
  const std::string segment = FirstSegment(directory.path());
  {
    // Makes all payloads wrong that are not of one page.
    std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
    Sector sector;
    uint64_t at = kSectorBytes;
    int num_damaged = 0;
    while (file.seekg(static_cast<std::streamoff>(at)) &&
           file.read(reinterpret_cast<char*>(sector.data()), sector.size())) {
      const std::optional<RecordHeader> header = DecodeRecordHeader(sector);
      if (!header) break;
      if (header->key.kind == RecordKind::kSnapshot) {
        file.seekp(static_cast<std::streamoff>(at + kSectorBytes));
        file.put('x');
        ++num_damaged;
      }
      at += RecordBytes(header->payload_bytes);
    }
    EXPECT_GE(num_damaged, 3);
  }
  EngineWithTier later(directory.path(), TierOptionsWithStates());
  const auto answer = later.Ask(request);
  EXPECT_EQ(answer.cached_tokens, 0);
  EXPECT_EQ(answer.tokens, FakeExecutor::Continue(request));
  EXPECT_EQ(later.engine().Snapshot().tier->read_errors, 1u);
}

TEST(StoreTierTest, TokensFromMemoryAndFromDiskAreCountedApart) {
  const TemporaryDirectory directory;
  const Request request = testing::MakeRequest(1, 50, 10);
  EngineWithTier(directory.path()).Ask(request);
  EngineWithTier later(directory.path());
  EXPECT_EQ(later.Ask(testing::MakeRequest(2, 9, 1)).loaded_tokens, 8);
  const auto answer = later.Ask(request);
  EXPECT_EQ(answer.cached_tokens, 48);
  EXPECT_EQ(answer.loaded_tokens, 40);
  const EngineStats stats = later.engine().Snapshot();
  EXPECT_EQ(stats.prefix_hits, 56u);
  EXPECT_EQ(stats.tier_hits, 48u);
  EXPECT_EQ(stats.tier_loads, 0);
}

TEST(StoreTierTest, SaltsAreApart) {
  const TemporaryDirectory directory;
  Request request = testing::MakeRequest(1, 50, 10);
  request.cache_salt = "one";
  EngineWithTier(directory.path()).Ask(request);
  EngineWithTier later(directory.path());
  Request other = request;
  other.id = 2;
  other.cache_salt = "two";
  EXPECT_EQ(later.Ask(other).cached_tokens, 0);
  EXPECT_EQ(later.Ask(request).cached_tokens, 48);
}

TEST(StoreTierTest, ResetForgetsWhatIsOnDisk) {
  const TemporaryDirectory directory;
  const Request request = testing::MakeRequest(1, 50, 10);
  {
    EngineWithTier engine(directory.path());
    engine.Ask(request);
    engine.Reset({.memory = true, .second_tier = true});
  }
  EXPECT_EQ(EngineWithTier(directory.path()).Ask(request).cached_tokens, 0);
}

TEST(StoreTierTest, ResetOfTheMemoryLeavesTheDisk) {
  const TemporaryDirectory directory;
  EngineWithTier engine(directory.path());
  Request request = testing::MakeRequest(1, 50, 10);
  engine.Ask(request);
  ASSERT_TRUE(testing::Eventually([&] { return engine.engine().Snapshot().tier->pages >= 12; }));
  engine.Reset({.memory = true});
  EXPECT_EQ(engine.engine().Snapshot().pages_cached, 0);
  request.id = 2;
  EXPECT_EQ(engine.Ask(request).cached_tokens, 48);
  EXPECT_EQ(engine.engine().Snapshot().tier_hits, 48u);
}

TEST(StoreTierTest, ResetOfTheDiskLeavesTheMemory) {
  const TemporaryDirectory directory;
  EngineWithTier engine(directory.path());
  Request request = testing::MakeRequest(1, 50, 10);
  engine.Ask(request);
  ASSERT_TRUE(testing::Eventually([&] { return engine.engine().Snapshot().tier->pages >= 12; }));
  engine.Reset({.second_tier = true});
  EXPECT_EQ(engine.engine().Snapshot().tier->pages, 0u);
  request.id = 2;
  EXPECT_EQ(engine.Ask(request).cached_tokens, 48);
  EXPECT_EQ(engine.engine().Snapshot().tier_hits, 0u);
}

TEST(StoreTierTest, ResetOfTheDiskForgetsWhatIsBeingLoaded) {
  const TemporaryDirectory directory;
  const Request request = testing::MakeRequest(1, 50, 10);
  EngineWithTier(directory.path()).Ask(request);
  testing::StepGate gate(testing::StepGate::State::kClosed);
  gate.Allow(5);
  EngineWithTier later(directory.path(), TierOptions(), &gate);
  EXPECT_TRUE(later.engine().Submit(request).ok());
  gate.WaitForArrival();
  later.Reset({.second_tier = true});
  EXPECT_EQ(later.engine().Snapshot().tier_loads, 1);
  gate.Open();
  const auto answer = later.Await(request.id);
  EXPECT_EQ(answer.cached_tokens, 0);
  EXPECT_EQ(answer.tokens, FakeExecutor::Continue(request));
}

TEST(StoreTierTest, ResetOfTheMemoryLoadsAgainWhatFollowedItsPages) {
  const TemporaryDirectory directory;
  const Request request = testing::MakeRequest(1, 50, 10);
  EngineWithTier(directory.path()).Ask(request);
  testing::StepGate gate(testing::StepGate::State::kClosed);
  gate.Allow(2);
  EngineWithTier later(directory.path(), TierOptions(), &gate);
  EXPECT_EQ(later.Ask(testing::MakeRequest(2, 9, 1)).cached_tokens, 8);
  EXPECT_TRUE(later.engine().Submit(request).ok());
  gate.WaitForArrival();
  later.Reset({.memory = true});
  gate.Open();
  const auto answer = later.Await(request.id);
  EXPECT_EQ(answer.cached_tokens, 48);
  EXPECT_EQ(answer.tokens, FakeExecutor::Continue(request));
}

TEST(StoreTierTest, DamagedPageEndsThePrefixBeforeIt) {
  const TemporaryDirectory directory;
  const Request request = testing::MakeRequest(1, 50, 10);
  EngineWithTier(directory.path()).Ask(request);
  {
    // The payload of the sixth record.
    std::fstream file(FirstSegment(directory.path()), std::ios::in | std::ios::out);
    const uint64_t record = RecordBytes(4 * sizeof(uint64_t));
    file.seekp(static_cast<std::streamoff>(kSectorBytes + 5 * record + kSectorBytes));
    file.put('x');
  }
  EngineWithTier later(directory.path());
  const auto answer = later.Ask(request);
  EXPECT_EQ(answer.cached_tokens, 5 * 4);
  EXPECT_EQ(answer.tokens, FakeExecutor::Continue(request));
  EXPECT_EQ(later.engine().Snapshot().tier->read_errors, 1u);
}

TEST(StoreTierTest, DirectoryThatGoesAwayIsCountedAndServedOn) {
  const TemporaryDirectory directory;
  const Request request = testing::MakeRequest(1, 50, 10);
  EngineWithTier engine(directory.path());
  std::filesystem::remove_all(directory.path());
  EXPECT_EQ(engine.Ask(request).tokens, FakeExecutor::Continue(request));
}

}  // namespace
}  // namespace diffserve
