// SPDX-License-Identifier: Apache-2.0
// The queue of the text threads: whose turn it is, and what never waits for a long text.
#include "server/serving/text_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace diffserve {
namespace {

constexpr size_t kLong = 4 << 20;

// Names of tasks in the order in which they ran; tasks can be held.
class Record {
 public:
  TextPool::Task Task(const std::string& name) {
    return [this, name](bool run) { Add(run ? name : "dropped " + name); };
  }
  // Runs until Release.
  TextPool::Task HeldTask(const std::string& name) {
    return [this, name](bool) {
      std::unique_lock lock(mutex_);
      ran_.push_back(name);
      changed_.notify_all();
      changed_.wait(lock, [this] { return released_; });
    };
  }
  void Release() {
    std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  std::vector<std::string> WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::minutes(1), [&] { return ran_.size() >= count; }));
    return ran_;
  }

 private:
  void Add(const std::string& name) {
    std::lock_guard lock(mutex_);
    ran_.push_back(name);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> ran_;
  bool released_ = false;
};

size_t PlaceOf(const std::vector<std::string>& ran, const std::string& name) {
  return static_cast<size_t>(std::find(ran.begin(), ran.end(), name) - ran.begin());
}

// One thread, which is held until all tasks of a test are queued.
struct HeldLine {
  explicit HeldLine(TextPoolOptions options = {}) : pool(options) {
    EXPECT_TRUE(pool.TrySubmit("holder", 0, record.HeldTask("held")));
    record.WaitFor(1);
  }
  bool Submit(const std::string& client, size_t bytes, const std::string& name) {
    return pool.TrySubmit(client, bytes, record.Task(name));
  }

  Record record;
  TextPool pool;
};

TEST(TextPoolTest, ClientWithOneTaskWaitsForOneTurnOfTheOthers) {
  HeldLine line;
  for (int i = 0; i < 200; ++i)
    ASSERT_TRUE(line.Submit("crowd", 60 << 10, "crowd " + std::to_string(i)));
  ASSERT_TRUE(line.Submit("late", 100, "late"));
  line.record.Release();
  EXPECT_LE(PlaceOf(line.record.WaitFor(202), "late"), 3u);
}

TEST(TextPoolTest, ClientsGetEqualBytesAndNotEqualTasks) {
  HeldLine line;
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(line.Submit("large", 60 << 10, "large"));
  for (int i = 0; i < 160; ++i) ASSERT_TRUE(line.Submit("small", 12 << 10, "small"));
  line.record.Release();
  const std::vector<std::string> ran = line.record.WaitFor(201);
  const auto half = ran.begin() + 101;
  // A task counts as 4 KiB plus its bytes: 64 and 16.
  const auto large = std::count(ran.begin(), half, "large");
  const auto small = std::count(ran.begin(), half, "small");
  EXPECT_NEAR(static_cast<double>(small) / static_cast<double>(large), 4.0, 0.5);
}

TEST(TextPoolTest, ShortTasksOvertakeALongOneABoundedNumberOfTimes) {
  HeldLine line;
  ASSERT_TRUE(line.Submit("a", kLong, "long"));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(line.Submit("a", 1, "short"));
  line.record.Release();
  EXPECT_EQ(PlaceOf(line.record.WaitFor(102), "long"), 17u) << "after 16 short ones";
}

TEST(TextPoolTest, LongTaskDelaysOthersOnlyByItsShareOfBytes) {
  HeldLine line;
  ASSERT_TRUE(line.Submit("a", 1 << 20, "long"));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(line.Submit("b", 60 << 10, "other"));
  line.record.Release();
  // 1 MiB is 16 turns of 64 KiB, and one for the task's fixed cost.
  EXPECT_NEAR(static_cast<double>(PlaceOf(line.record.WaitFor(102), "long")), 17, 2);
}

TEST(TextPoolTest, LongTasksLeaveOneThreadForShortTasks) {
  Record longs, shorts;
  TextPool pool({.threads = 2});
  for (const char* client : {"a", "b", "c"})
    ASSERT_TRUE(pool.TrySubmit(client, kLong, longs.HeldTask(client)));
  longs.WaitFor(1);
  for (const char* client : {"a", "b", "c", "d"})
    ASSERT_TRUE(pool.TrySubmit(client, 10, shorts.Task(client)));
  EXPECT_EQ(shorts.WaitFor(4).size(), 4u);
  EXPECT_EQ(longs.WaitFor(1).size(), 1u) << "a second long task took the last thread";
  longs.Release();
  EXPECT_EQ(longs.WaitFor(3).size(), 3u);
}

TEST(TextPoolTest, OneClientCannotFillTheQueue) {
  HeldLine tasks({.max_tasks = 100});
  int taken = 0;
  while (tasks.Submit("crowd", 1, "crowd")) ++taken;
  EXPECT_EQ(taken, 75);
  EXPECT_TRUE(tasks.Submit("other", 1, "other"));
  tasks.record.Release();

  HeldLine bytes({.max_bytes = 1000});
  taken = 0;
  while (bytes.Submit("crowd", 50, "crowd")) ++taken;
  EXPECT_EQ(taken, 15);
  EXPECT_FALSE(bytes.Submit("other", 300, "other"));
  EXPECT_TRUE(bytes.Submit("other", 250, "other"));
  bytes.record.Release();
}

TEST(TextPoolTest, TaskAboveTheByteLimitRunsWhenNothingWaits) {
  HeldLine line({.max_bytes = 1000});
  EXPECT_TRUE(line.Submit("a", 5000, "huge"));
  EXPECT_FALSE(line.Submit("a", 1, "more"));
  line.record.Release();
  line.record.WaitFor(2);
}

TEST(TextPoolTest, QueuedTasksAreEndedOnceAtClose) {
  Record record;
  {
    TextPool pool({.threads = 1});
    ASSERT_TRUE(pool.TrySubmit("a", 0, record.HeldTask("held")));
    record.WaitFor(1);
    ASSERT_TRUE(pool.TrySubmit("a", 1, record.Task("short")));
    ASSERT_TRUE(pool.TrySubmit("b", kLong, record.Task("long")));
    std::thread end([&record] { record.Release(); });
    end.join();
  }
  std::map<std::string, int> told;
  for (const std::string& name : record.WaitFor(3)) ++told[name];
  const int ran = told["short"] + told["long"];
  EXPECT_EQ(ran + told["dropped short"] + told["dropped long"], 2);
}

}  // namespace
}  // namespace diffserve
