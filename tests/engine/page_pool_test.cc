// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace diffserve {
namespace {

TEST(PagePoolTest, PageIsFreeCachedOrInUse) {
  PagePool pool(3);
  EXPECT_EQ(pool.num_free(), 3);
  const int32_t page = pool.Allocate()->page;
  EXPECT_EQ(pool.num_in_use(), 1);
  EXPECT_EQ(pool.holders(page), 1);
  pool.Share(page);
  pool.Release(page, true);
  EXPECT_EQ(pool.num_in_use(), 1) << "another sequence holds it still";
  pool.Release(page, true);
  EXPECT_TRUE(pool.is_cached(page));
  EXPECT_EQ(pool.num_cached(), 1);
  pool.Share(page);
  EXPECT_EQ(pool.num_in_use(), 1);
  pool.Release(page, false);
  EXPECT_EQ(pool.num_free(), 3);
  pool.CheckInvariants();
}

TEST(PagePoolTest, AllocatesFreePagesThenTheLeastRecentlyReleased) {
  PagePool pool(3);
  const int32_t a = pool.Allocate()->page;
  const int32_t b = pool.Allocate()->page;
  pool.Release(b, true);
  pool.Release(a, true);
  pool.Share(b);
  pool.Release(b, true);  // b is now younger than a
  const auto first = pool.Allocate();
  EXPECT_FALSE(first->was_cached);
  const auto second = pool.Allocate();
  EXPECT_TRUE(second->was_cached);
  EXPECT_EQ(second->page, a);
  EXPECT_EQ(pool.Allocate()->page, b);
  EXPECT_FALSE(pool.Allocate().has_value());
  pool.CheckInvariants();
}

TEST(PagePoolTest, ForgottenPageIsFree) {
  PagePool pool(2);
  const int32_t a = pool.Allocate()->page;
  pool.Release(a, true);
  pool.Forget(a);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_cached(), 0);
  pool.CheckInvariants();
}

TEST(PagePoolTest, InvariantsHoldUnderRandomUse) {
  std::mt19937 random(7);
  PagePool pool(17);
  std::vector<int32_t> held;
  for (int step = 0; step < 20000; ++step) {
    switch (random() % 4) {
      case 0:
        if (const auto grant = pool.Allocate()) held.push_back(grant->page);
        break;
      case 1:
        if (!held.empty()) {
          held.push_back(held[random() % held.size()]);
          pool.Share(held.back());
        }
        break;
      default:
        if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          pool.Release(held.back(), random() % 2 == 0);
          held.pop_back();
        }
    }
    pool.CheckInvariants();
    std::vector<int> holders(17, 0);
    for (int32_t page : held) ++holders[page];
    for (int32_t page = 0; page < 17; ++page) ASSERT_EQ(pool.holders(page), holders[page]);
  }
}

TEST(PagePoolDeathTest, ReleasingAPageWithoutHolderIsABug) {
  PagePool pool(1);
  EXPECT_DEATH(pool.Release(0, false), "only a held page is released");
  EXPECT_DEATH(pool.Share(0), "only a page with content is shared");
}

}  // namespace
}  // namespace diffserve
