// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace diffserve {
namespace {

using Tokens = std::vector<int32_t>;

class PrefixIndexTest : public ::testing::Test {
 protected:
  static PrefixIndex::Options MakeOptions(uint64_t mask = ~0ull) {
    PrefixIndex::Options options;
    options.num_pages = 16;
    options.page_size = 2;
    options.hash_key = 99;
    options.hash_mask = mask;
    return options;
  }
  PrefixIndex::Key First(const Tokens& tokens, const std::string& salt = kNoSalt) const {
    return {-1, index_.ChainHash(index_.RootHash(salt), tokens), tokens, salt};
  }
  PrefixIndex::Key After(const PrefixIndex::Key& before, int32_t parent,
                         const Tokens& tokens) const {
    return {parent, index_.ChainHash(before.hash, tokens), tokens, before.salt};
  }
  static inline const std::string kNoSalt;
  PrefixIndex index_{MakeOptions()};
};

TEST_F(PrefixIndexTest, FindsAChainPageByPage) {
  const Tokens a = {1, 2}, b = {3, 4}, c = {3, 5};
  EXPECT_EQ(index_.Insert(First(a), 7), 7);
  EXPECT_EQ(index_.Insert(After(First(a), 7, b), 8), 8);
  EXPECT_EQ(index_.Find(First(a)), 7);
  EXPECT_EQ(index_.Find(After(First(a), 7, b)), 8);
  EXPECT_EQ(index_.Find(After(First(a), 7, c)), -1);
  EXPECT_EQ(index_.Find(First(b)), -1)
      << "the same tokens at another place of a chain are another page";
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, FirstIndexedPageOfAChainIsKept) {
  const Tokens a = {1, 2};
  EXPECT_EQ(index_.Insert(First(a), 7), 7);
  EXPECT_EQ(index_.Insert(First(a), 3), 7);
  EXPECT_FALSE(index_.Contains(3));
  EXPECT_EQ(index_.size(), 1);
}

TEST_F(PrefixIndexTest, EachSaltHasItsOwnChains) {
  const Tokens a = {1, 2};
  const std::string salt = "tenant";
  EXPECT_EQ(index_.Insert(First(a), 1), 1);
  EXPECT_EQ(index_.Find(First(a, salt)), -1);
  EXPECT_EQ(index_.WhyMissing(First(a, salt)), MissReason::kNoPrefix)
      << "what another tenant has is not told";
  EXPECT_EQ(index_.Insert(First(a, salt), 2), 2) << "both salts can be cached at the same time";
  EXPECT_EQ(index_.Find(First(a)), 1);
  EXPECT_EQ(index_.Find(First(a, salt)), 2);
}

TEST_F(PrefixIndexTest, MissReportsItsReason) {
  const Tokens a = {1, 2}, b = {5, 6};
  EXPECT_EQ(index_.WhyMissing(First(a)), MissReason::kNoPrefix);
  index_.Insert(First(a), 1);
  index_.Evict(1);
  EXPECT_EQ(index_.WhyMissing(First(a)), MissReason::kEvicted);
  EXPECT_EQ(index_.WhyMissing(First(b)), MissReason::kNoPrefix);
  index_.Insert(First(a), 2);
  index_.EraseChain(2);
  EXPECT_EQ(index_.WhyMissing(First(a)), MissReason::kNoPrefix)
      << "what was forgotten on purpose was not evicted";
}

TEST_F(PrefixIndexTest, EraseRemovesAllFollowingPages) {
  const Tokens a = {1, 2}, b = {3, 4}, c = {5, 6}, d = {7, 8};
  index_.Insert(First(a), 1);
  index_.Insert(After(First(a), 1, b), 2);
  index_.Insert(After(After(First(a), 1, b), 2, c), 3);
  index_.Insert(After(First(a), 1, d), 4);
  index_.Insert(First(d), 5);
  std::vector<int32_t> erased = index_.EraseChain(2);
  EXPECT_EQ(std::set<int32_t>(erased.begin(), erased.end()), (std::set<int32_t>{2, 3}));
  EXPECT_TRUE(index_.Contains(1) && index_.Contains(4) && index_.Contains(5));
  index_.CheckInvariants();
  EXPECT_EQ(index_.Insert(After(After(First(a), 1, b), 2, c), 6), -1)
      << "its parent is not indexed any more";
}

TEST_F(PrefixIndexTest, HashCollisionNeverServesAWrongPage) {
  // With two possible hashes nearly every lookup collides. The index must agree with an exact map
  // from chains to pages whenever it finds something.
  std::mt19937 random(3);
  for (uint64_t mask : {uint64_t{0}, uint64_t{1}, uint64_t{7}}) {
    PrefixIndex index(MakeOptions(mask));
    std::map<std::pair<std::string, Tokens>, int32_t> exact;
    int num_found = 0;
    for (int round = 0; round < 2000; ++round) {
      const std::string salt = random() % 2 ? "a" : "b";
      Tokens tokens;
      for (int i = 0; i < 6; ++i) tokens.push_back(static_cast<int32_t>(random() % 3));
      uint64_t hash = index.RootHash(salt);
      int32_t parent = -1;
      for (int page = 0; page < 3; ++page) {
        const Tokens own(tokens.begin() + page * 2, tokens.begin() + page * 2 + 2);
        const Tokens chain(tokens.begin(), tokens.begin() + page * 2 + 2);
        hash = index.ChainHash(hash, own);
        const PrefixIndex::Key key{parent, hash, own, salt};
        const int32_t found = index.Find(key);
        if (found >= 0) {
          ASSERT_EQ(found, exact.at({salt, chain}));
          ++num_found;
          parent = found;
          continue;
        }
        const auto free_page = static_cast<int32_t>(random() % 16);
        if (index.Contains(free_page)) {
          const std::vector<int32_t> erased = index.EraseChain(free_page);
          std::erase_if(exact, [&](const auto& entry) {
            return std::ranges::find(erased, entry.second) != erased.end();
          });
          break;
        }
        const int32_t kept = index.Insert(key, free_page);
        if (kept < 0) break;
        ASSERT_EQ(kept, free_page);
        exact[{salt, chain}] = kept;
        parent = kept;
      }
      index.CheckInvariants();
      ASSERT_EQ(static_cast<size_t>(index.size()), exact.size());
    }
    EXPECT_GT(num_found, 50) << mask;
  }
}

TEST_F(PrefixIndexTest, ClearedIndexIsEmptyAndEmitsOneEvent) {
  PrefixIndex::Options options = MakeOptions();
  options.record_events = true;
  PrefixIndex index(options);
  const Tokens a = {1, 2}, b = {3, 4};
  index.Insert(First(a), 7);
  index.Insert(After(First(a), 7, b), 8);
  index.Insert(First(b), 3);
  index.Evict(3);
  EXPECT_EQ(index.Clear(), (std::vector<int32_t>{7, 8}));
  index.CheckInvariants();
  EXPECT_EQ(index.size(), 0);
  EXPECT_EQ(index.WhyMissing(First(b)), MissReason::kNoPrefix);
  const std::vector<KvEvent> events = index.TakeEvents();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().kind, KvEvent::Kind::kCleared);
  EXPECT_TRUE(events.back().hashes.empty());
  EXPECT_EQ(index.Insert(First(a), 8), 8);
  EXPECT_FALSE(index.TakeEvents().front().parent);
}

TEST_F(PrefixIndexTest, MemoryOfEvictionsIsBounded) {
  for (int i = 0; i < 5000; ++i) {
    const Tokens tokens = {i, i};
    index_.Insert(First(tokens), i % 16);
    index_.Evict(i % 16);
  }
  index_.CheckInvariants();
  const Tokens oldest = {0, 0}, newest = {4999, 4999};
  EXPECT_EQ(index_.WhyMissing(First(oldest)), MissReason::kNoPrefix);
  EXPECT_EQ(index_.WhyMissing(First(newest)), MissReason::kEvicted);
}

}  // namespace
}  // namespace diffserve
