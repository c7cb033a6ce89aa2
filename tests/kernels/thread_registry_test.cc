// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/thread_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <latch>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace diffserve {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

using Thread = std::tuple<std::string, std::string, pid_t>;

std::vector<Thread> Threads() {
  std::vector<Thread> threads;
  ForEachThread([&](const char* name, const char* where, pid_t thread) {
    threads.emplace_back(name, where, thread);
  });
  return threads;
}

TEST(ThreadRegistryTest, ReportsTheActivityOfEachLiveThread) {
  std::latch is_there(1), may_leave(1);
  pid_t id = 0;
  std::thread thread([&] {
    const NamedThread named("waiter", "the start");
    const ScopedThreadActivity at("the latch");
    id = gettid();
    is_there.count_down();
    may_leave.wait();
  });
  is_there.wait();
  EXPECT_THAT(Threads(), Contains(Thread("waiter", "the latch", id)));
  may_leave.count_down();
  thread.join();
  EXPECT_THAT(Threads(), Not(Contains(Thread("waiter", "the latch", id))));
}

TEST(ThreadRegistryTest, PlacesNestAndAreReleased) {
  std::thread([] {
    const ScopedThreadActivity nowhere("a thread without name");
    EXPECT_THAT(Threads(), IsEmpty());
    for (int i = 0; i < 2 * kMaxThreads; ++i) {
      const NamedThread named("nested", "outside");
      {
        const ScopedThreadActivity first("first");
        const ScopedThreadActivity second("second");
        ASSERT_THAT(Threads(), ElementsAre(Thread("nested", "second", gettid())));
      }
      ASSERT_THAT(Threads(), ElementsAre(Thread("nested", "outside", gettid())));
    }
  }).join();
}

TEST(ThreadRegistryTest, ThreadsBeyondThePlacesRunWithoutOne) {
  std::latch all_there(kMaxThreads + 2), may_leave(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < kMaxThreads + 2; ++i) {
    threads.emplace_back([&] {
      const NamedThread named("many", "the start");
      const ScopedThreadActivity at("the latch");
      all_there.count_down();
      may_leave.wait();
    });
  }
  all_there.wait();
  EXPECT_EQ(Threads().size(), static_cast<size_t>(kMaxThreads));
  may_leave.count_down();
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Threads(), IsEmpty());
}

}  // namespace
}  // namespace diffserve
