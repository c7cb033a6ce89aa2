// How a step's batch is cut and packed for the device. Host code alone.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "models/step_batch_cuda.h"

namespace diffserve::cuda {
namespace {

constexpr int kPage = 64;

// A batch with page tables of its own.
struct OwnedBatch {
  Batch batch;
  std::vector<std::vector<int32_t>> pages;

  void Add(int position, int num_tokens, int num_prompt_tokens) {
    std::vector<int32_t> table(static_cast<size_t>((position + num_tokens + kPage - 1) / kPage));
    std::iota(table.begin(), table.end(), static_cast<int32_t>(100 * pages.size()));
    pages.push_back(std::move(table));
    batch.sequences.push_back(
        {static_cast<int>(batch.tokens.size()), num_tokens, position, nullptr});
    batch.num_prompt_tokens.push_back(num_prompt_tokens);
    for (int i = 0; i < num_tokens; ++i)
      batch.tokens.push_back(static_cast<int32_t>(1000 * pages.size()) + i);
    batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()) - 1);
    batch.sample_rows.push_back(
        {.kind = SampleKind::kGreedy, .top_k = static_cast<int32_t>(pages.size())});
    for (size_t s = 0; s < pages.size(); ++s) batch.sequences[s].pages = pages[s].data();
  }
};

template <typename T>
std::vector<T> Read(const std::vector<std::byte>& bytes, size_t offset, size_t count) {
  std::vector<T> values(count);
  EXPECT_LE(offset + count * sizeof(T), bytes.size());
  if (count > 0) std::memcpy(values.data(), bytes.data() + offset, count * sizeof(T));
  return values;
}

OwnedBatch RandomBatch(std::mt19937& random) {
  OwnedBatch owned;
  const int count = 1 + static_cast<int>(random() % 6);
  for (int s = 0; s < count; ++s) {
    const int rows = 1 + static_cast<int>(random() % 20),
              position = static_cast<int>(random() % 300);
    owned.Add(position, rows, static_cast<int>(random() % static_cast<unsigned>(rows + 1)));
  }
  return owned;
}

TEST(StepBatchTest, PassesCoverEachRowOnceInOrderAndKeepWithinTheItems) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const OwnedBatch owned = RandomBatch(random);
    const AttentionTiling tiling = {1 + static_cast<int>(random() % 3),
                                    1 + static_cast<int>(random() % 8), 64};
    const int64_t items_max = 3 * tiling.NumSplits(400) + static_cast<int64_t>(random() % 60);
    std::vector<int> next(owned.batch.sequences.size(), 0);
    for (const StepPass& pass : CutIntoPasses(owned.batch, tiling, items_max)) {
      int64_t items = 0;
      ASSERT_FALSE(pass.empty());
      std::set<std::pair<int, bool>> seen;
      for (const StepPiece& piece : pass) {
        const size_t s = static_cast<size_t>(piece.sequence);
        EXPECT_EQ(piece.first, next[s]);
        EXPECT_TRUE(seen.emplace(piece.sequence, piece.is_prompt).second)
            << "two entries of one kind";
        EXPECT_EQ(piece.is_prompt, piece.first < owned.batch.num_prompt_tokens[s]);
        next[s] = piece.first + piece.num_tokens;
        if (piece.is_prompt) {
          EXPECT_EQ(next[s], owned.batch.num_prompt_tokens[s]);
        } else {
          items += int64_t{tiling.NumTiles(piece.num_tokens)} *
                   tiling.NumSplits(owned.batch.sequences[s].position + next[s]);
        }
      }
      EXPECT_LE(items, items_max);
    }
    for (size_t s = 0; s < next.size(); ++s)
      EXPECT_EQ(next[s], owned.batch.sequences[s].num_tokens);
  }
}

TEST(StepBatchTest, APackedStepHoldsEveryTokenItsPageAndItsDrawGeneratedRowsFirst) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    OwnedBatch owned = RandomBatch(random);
    const Batch& batch = owned.batch;
    owned.batch.adjustments.resize(random() % 5);
    owned.batch.masks.resize(random() % 3 * 7);
    std::iota(owned.batch.masks.begin(), owned.batch.masks.end(), 90000u);
    const std::vector<StepPass> passes = CutIntoPasses(batch, {1, 1, 512}, 1 << 20);
    ASSERT_EQ(passes.size(), 1u);
    PackedStep packed;
    PackStep(batch, passes[0], kPage, /*draws=*/true, 0, &packed);
    ASSERT_EQ(packed.shape.num_tokens, static_cast<int>(batch.tokens.size()));
    const StepOffsets at(packed.shape);
    const auto entries = Read<DeviceSequence>(packed.bytes, at.sequences,
                                              static_cast<size_t>(packed.shape.num_sequences));
    const auto tokens = Read<int32_t>(packed.bytes, at.tokens, batch.tokens.size());
    const auto token_sequences = Read<int32_t>(packed.bytes, at.token_sequences,
                                               batch.tokens.size());
    const auto logit_rows = Read<int32_t>(packed.bytes, at.logit_rows, batch.logit_rows.size());
    for (int row = 0; row < packed.shape.num_tokens; ++row) {
      const size_t r = static_cast<size_t>(row);
      const DeviceSequence& entry = entries[static_cast<size_t>(token_sequences[r])];
      const int position = entry.position + row - entry.first_row;
      EXPECT_TRUE(row >= entry.first_row && row < entry.first_row + entry.num_tokens);
      const size_t s = static_cast<size_t>(tokens[r] / 1000 - 1);
      const int in_batch = tokens[r] % 1000;
      EXPECT_EQ(position, batch.sequences[s].position + in_batch);
      EXPECT_EQ(row < packed.shape.num_generated_tokens, in_batch >= batch.num_prompt_tokens[s]);
      EXPECT_EQ(entry.num_tokens + entry.num_tokens_after - (row - entry.first_row),
                batch.sequences[s].num_tokens - in_batch);
      const size_t page_at = at.tail + sizeof(int32_t) *
                                           static_cast<size_t>(entry.first_page + position / kPage);
      const auto page = Read<int32_t>(packed.bytes, page_at, 1);
      EXPECT_EQ(page[0], owned.pages[s][static_cast<size_t>(position / kPage)]);
    }
    EXPECT_EQ(Read<uint32_t>(packed.bytes, at.tail, batch.masks.size()), batch.masks);
    const auto samples = Read<SampleTask>(packed.bytes, at.sample_rows, batch.sample_rows.size());
    for (size_t i = 0; i < logit_rows.size(); ++i) {
      EXPECT_EQ(tokens[static_cast<size_t>(logit_rows[i])],
                batch.tokens[static_cast<size_t>(batch.logit_rows[i])]);
      EXPECT_EQ(samples[i].top_k, batch.sample_rows[i].top_k);
      const size_t begin = at.tail + static_cast<size_t>(samples[i].first_adjustment) *
                                         sizeof(LogitAdjustment);
      EXPECT_EQ(begin + batch.adjustments.size() * sizeof(LogitAdjustment),
                std::max(packed.bytes.size(), begin));
    }
  }
}

TEST(StepBatchTest, PaddingIsNobodysAndDrawsNothing) {
  OwnedBatch owned;
  for (int s = 0; s < 5; ++s) owned.Add(70 + s, 1, 0);
  PackedStep packed;
  PackStep(owned.batch, CutIntoPasses(owned.batch, {1, 1, 512}, 1 << 20)[0], kPage,
           /*draws=*/true, 8, &packed);
  EXPECT_EQ(packed.shape.num_tokens, 8);
  EXPECT_EQ(packed.shape.num_generated_tokens, 8);
  EXPECT_EQ(packed.shape.num_logit_rows, 8);
  const StepOffsets at(packed.shape);
  const auto entries = Read<DeviceSequence>(packed.bytes, at.sequences, 8);
  const auto samples = Read<SampleTask>(packed.bytes, at.sample_rows, 8);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(entries[i].num_tokens, i < 5 ? 1 : 0);
    EXPECT_EQ(samples[i].kind, i < 5 ? SampleKind::kGreedy : SampleKind::kNothing);
    EXPECT_EQ(entries[i].first_row, static_cast<int>(i));
  }
}

TEST(StepBatchTest, FewGraphsServeAllSizesOfDecodeWithLittlePadding) {
  for (int rows_max : {1, 3, 6, 256, 4096}) {
    std::set<int> sizes;
    for (int rows = 1; rows <= rows_max; ++rows) {
      const int filled = GraphTokens(static_cast<size_t>(rows), rows_max);
      if (rows > 512) {
        EXPECT_EQ(filled, 0);
        continue;
      }
      EXPECT_GE(filled, rows);
      EXPECT_LE(filled, std::min(rows_max, rows + std::max(7, rows / 2)));
      EXPECT_EQ(GraphTokens(static_cast<size_t>(filled), rows_max), filled);
      sizes.insert(filled);
    }
    EXPECT_LE(sizes.size(), 25u);
  }
}

TEST(StepBatchTest, OnlyAStepOfSingleGeneratedRowsThatAllDrawIsADecode) {
  OwnedBatch owned;
  for (int s = 0; s < 3; ++s) owned.Add(9 + s, 1, 0);
  EXPECT_TRUE(IsDecode(owned.batch));
  Batch changed = owned.batch;
  changed.num_prompt_tokens[1] = 1;
  EXPECT_FALSE(IsDecode(changed));
  changed = owned.batch;
  changed.sample_rows.clear();
  EXPECT_FALSE(IsDecode(changed));
  changed = owned.batch;
  changed.num_prompt_tokens.clear();  // all rows are a prompt's
  EXPECT_FALSE(IsDecode(changed));
  owned.Add(5, 2, 0);
  EXPECT_FALSE(IsDecode(owned.batch));
}

}  // namespace
}  // namespace diffserve::cuda
