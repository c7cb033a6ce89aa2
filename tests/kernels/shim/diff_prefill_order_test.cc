// SPDX-License-Identifier: Apache-2.0
// How the prefill kernels distribute their tiles. No kernel runs; a loop plays all thread blocks.
#include "kernels/attention/diff_prefill_order.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace diffserve::cuda {
namespace {

// Every block's (item, group), in its order.
std::vector<std::vector<PrefillWork>> ShareOut(int num_items, int num_groups, unsigned num_blocks) {
  AttentionLaunch call = {};
  const AttentionPlanHead head = {0, num_items};
  call.plan.head = &head;
  call.num_groups = num_groups;
  std::vector<std::vector<PrefillWork>> blocks(num_blocks);
  gridDim = {num_blocks, 1, 1};
  for (unsigned block = 0; block < num_blocks; ++block) {
    blockIdx = {block, 0, 0};
    for (int turn = 0;; ++turn) {
      const PrefillWork work = PrefillWorkOf(call, turn);
      if (work.item < 0) break;
      blocks[block].push_back(work);
    }
  }
  return blocks;
}

TEST(DiffPrefillOrderTest, EveryTileOfEveryGroupIsTakenOnce) {
  for (const auto& [items, groups, num_blocks] : std::vector<std::tuple<int, int, unsigned>>{
           {0, 3, 4}, {1, 1, 7}, {5, 3, 4}, {64, 12, 132}, {33, 4, 132}, {100, 7, 1}}) {
    std::set<std::pair<int64_t, int>> taken;
    size_t count = 0;
    for (const std::vector<PrefillWork>& block : ShareOut(items, groups, num_blocks)) {
      for (const PrefillWork& work : block) taken.insert({work.item, work.group});
      count += block.size();
    }
    EXPECT_EQ(count, static_cast<size_t>(items * groups));
    EXPECT_EQ(taken.size(), count);
  }
}

// A block with more pages than the mean makes all others wait at the end.
TEST(DiffPrefillOrderTest, BlocksGetEqualNumbersOfPagesOfACausalPrompt) {
  for (const auto& [num_tiles, worst] :
       std::vector<std::pair<int, double>>{{32, 1.11}, {64, 1.01}, {256, 1.002}}) {
    std::vector<int64_t> pages;  // per block; item i of the prompt's 64-row tiles reads i + 1
    for (const std::vector<PrefillWork>& block : ShareOut(num_tiles, 12, 132)) {
      pages.push_back(0);
      for (const PrefillWork& work : block) pages.back() += work.item + 1;
    }
    const double mean =
        static_cast<double>(std::accumulate(pages.begin(), pages.end(), int64_t{0})) / 132;
    EXPECT_LE(static_cast<double>(*std::max_element(pages.begin(), pages.end())), worst * mean)
        << num_tiles;
  }
}

}  // namespace
}  // namespace diffserve::cuda
