// SPDX-License-Identifier: Apache-2.0
// Random ids: their form, and that neither a fork nor another thread repeats them.
#include "server/api/head/random_id.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

namespace diffserve {
namespace {

TEST(RandomIdTest, HasTheDigitsThatWereAskedFor) {
  for (const size_t digits : {1, 15, 16, 32, 64}) {
    const std::string id = RandomHex(digits);
    EXPECT_EQ(id.size(), digits);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
    EXPECT_NE(id.find_first_not_of('0'), std::string::npos) << id;
  }
}

TEST(RandomIdTest, EachDigitTakesEachValue) {
  std::vector<std::set<char>> seen(32);
  for (int i = 0; i < 1000; ++i) {
    const std::string id = RandomHex(seen.size());
    for (size_t at = 0; at < id.size(); ++at) seen[at].insert(id[at]);
  }
  for (const std::set<char>& values : seen) EXPECT_EQ(values.size(), 16u);
}

// A generator that a process keeps in memory would go on alike in both processes.
TEST(RandomIdTest, ForkedProcessHasOtherIds) {
  (void)RandomHex(32);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string id = RandomHex(32);
    _exit(write(ends[1], id.data(), id.size()) == static_cast<ssize_t>(id.size()) ? 0 : 1);
  }
  std::string theirs(32, '\0');
  EXPECT_EQ(read(ends[0], theirs.data(), theirs.size()), static_cast<ssize_t>(theirs.size()));
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(theirs, RandomHex(32));
  close(ends[0]);
  close(ends[1]);
}

TEST(RandomIdTest, ThreadsShareNoIds) {
  std::vector<std::vector<std::string>> made(8);
  std::vector<std::thread> threads;
  for (std::vector<std::string>& ids : made) {
    threads.emplace_back([&ids] {
      for (int i = 0; i < 200; ++i) ids.push_back(RandomHex(32));
    });
  }
  std::set<std::string> all;
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<std::string>& ids : made) all.insert(ids.begin(), ids.end());
  EXPECT_EQ(all.size(), 1600u);
}

}  // namespace
}  // namespace diffserve
