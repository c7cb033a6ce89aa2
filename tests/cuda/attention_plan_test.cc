// SPDX-License-Identifier: Apache-2.0
// The plan of decode attention: everything once, and independent of the rest of the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/attention/attention_plan_cuda.h"

namespace diffserve::cuda {
namespace {

auto Fields(const AttentionItem& item) {
  return std::tie(item.first_row, item.num_tokens, item.position, item.first_page, item.tile,
                  item.num_slots, item.first_slot, item.end_slot);
}

std::vector<AttentionItem> Planned(const std::vector<DeviceSequence>& sequences,
                                   const AttentionTiling& tiling) {
  std::vector<AttentionItem> items;
  PlanAttention(sequences, tiling, &items);
  return items;
}

std::vector<DeviceSequence> RandomSequences(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<DeviceSequence> sequences;
  int32_t row = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t num_tokens = static_cast<int32_t>(generator() % 5);  // some have none
    sequences.push_back({row, num_tokens, static_cast<int32_t>(generator() % 3000), 0});
    row += num_tokens;
  }
  return sequences;
}

TEST(AttentionPlanTest, LongRowsHaveLargeSplits) {
  const auto slots = [](int position, int window) {
    return AttentionTiling{.window = window}.SplitSlots({0, 1, position, 0});
  };
  for (const auto& [length, at_most, beyond] :
       {std::tuple{4096, 256, 512}, {16384, 512, 1024}, {65536, 1024, 2048}}) {
    EXPECT_EQ(slots(length - 1, kWholeContext), at_most);
    EXPECT_EQ(slots(length, kWholeContext), beyond);
    EXPECT_EQ(slots(1 << 20, length), at_most);
    EXPECT_EQ(slots(1 << 20, length + 1), beyond);
    EXPECT_EQ(slots(length - 1, length + 1), at_most);
    EXPECT_EQ(TokensOfOneSplitSize(length - 3), 3);
  }
  EXPECT_EQ(slots(0, kWholeContext), kSplitSlotsMin);
  EXPECT_EQ(slots(1 << 20, kWholeContext), kSplitSlotsMax);
  EXPECT_EQ(slots(1 << 20, 1), kSplitSlotsMin);
}

TEST(AttentionPlanTest, RowsOfAnEntryHaveSplitsOfOneSizeThroughAnyWindow) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 2000; ++trial) {
    const int position = static_cast<int>(random() % 100000);
    const int num_tokens = std::min(1 + static_cast<int>(random() % 300),
                                    TokensOfOneSplitSize(position));
    AttentionTiling tiling = {1, 8};
    const int near = std::array{4096, 16384, 65536}[random() % 3] + 2;
    if (random() % 3 > 0) tiling.window = near - static_cast<int>(random() % 300);
    const DeviceSequence entry = {0, num_tokens, position, 0};
    for (int token = 0; token < num_tokens; ++token)
      ASSERT_EQ(tiling.SplitSlots({0, 1, position + token, 0}), tiling.SplitSlots(entry));
    ASSERT_LE(tiling.ItemsPerTile(entry), AttentionSplitsMax(tiling, position, num_tokens))
        << position << " " << num_tokens << " " << tiling.window;
  }
}

TEST(AttentionPlanTest, EveryRowMeetsEverySlotItAttendsToOnceAndInOrder) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<DeviceSequence> sequences = RandomSequences(1 + seed * 3, seed);
    AttentionTiling tiling = {static_cast<int>(1 + seed % 5), seed % 2 == 0 ? 8 : 16};
    if (seed % 3 > 0) tiling.window = seed % 3 == 1 ? 3 : 900;
    std::map<std::pair<int, int>, int> covered;  // (first row, tile) -> slots so far
    for (const AttentionItem& item : Planned(sequences, tiling)) {
      const DeviceSequence rows = {item.first_row, item.num_tokens, item.position, item.first_page};
      const int split_slots = tiling.SplitSlots(rows);
      const int first = tiling.FirstSplit(rows) * split_slots;
      ASSERT_LE(first, FirstSlotSeen(rows.position, tiling.window));
      ASSERT_GT(first + split_slots, FirstSlotSeen(rows.position, tiling.window));
      int& slots = covered.try_emplace({item.first_row, item.tile}, first).first->second;
      const int first_seen = tiling.FirstSlot(rows, item.tile) / kImagePageSize * kImagePageSize;
      ASSERT_EQ(item.num_slots, tiling.NumSlots(rows, item.tile));
      ASSERT_EQ(item.first_slot, std::max(slots, first_seen))
          << "a split is missing, twice or out of order";
      slots += split_slots;
      ASSERT_EQ(item.end_slot, std::min(slots, item.num_slots));
    }
    size_t tiles = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int row = 0; row < sequences[s].num_tokens; ++row) {
        for (int head = 0; head < tiling.heads_per_group; ++head) {
          const int tile = tiling.TileOf(row, head);
          const auto found = covered.find({sequences[s].first_row, tile});
          ASSERT_NE(found, covered.end());
          ASSERT_GE(found->second, sequences[s].position + row + 1);
          ASSERT_GE(tiling.NumSlots(sequences[s], tile), sequences[s].position + row + 1);
          ASSERT_LE(tiling.NumSlots(sequences[s], tile),
                    sequences[s].position + sequences[s].num_tokens);
        }
      }
      tiles += static_cast<size_t>(
          sequences[s].num_tokens > 0 ? tiling.NumTiles(sequences[s].num_tokens) : 0);
    }
    ASSERT_EQ(covered.size(), tiles);
  }
}

TEST(AttentionPlanTest, ItemsOfASequenceAreIndependentOfTheBatch) {
  const AttentionTiling tiling = {4, 8, kSplitsByLength, 1000};
  const std::vector<DeviceSequence> sequences = RandomSequences(40, 3);
  const std::vector<AttentionItem> together = Planned(sequences, tiling);
  size_t begin = 0;
  for (const DeviceSequence& sequence : sequences) {
    for (const AttentionItem& alone : Planned({sequence}, tiling)) {
      ASSERT_LT(begin, together.size());
      ASSERT_EQ(Fields(alone), Fields(together[begin]));
      ASSERT_EQ(together[begin++].first_row, sequence.first_row);
    }
  }
  EXPECT_EQ(begin, together.size());
}

// Splits of 256 slots: through a window of 400 a token at 2000 sees slots from 1601 on.
TEST(AttentionPlanTest, SplitsBeforeTheWindowHaveNoItems) {
  const std::vector<AttentionItem> planned = Planned({{0, 1, 2000, 0}, {1, 1, 200, 0}},
                                                     {1, 8, kSplitsByLength, 400});
  ASSERT_EQ(planned.size(), 3u);
  const int first_slots[] = {1600, 1792, 0}, end_slots[] = {1792, 2001, 201};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(planned[i].first_slot, first_slots[i]);
    EXPECT_EQ(planned[i].end_slot, end_slots[i]);
  }
}

}  // namespace
}  // namespace diffserve::cuda
