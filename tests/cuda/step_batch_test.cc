// SPDX-License-Identifier: Apache-2.0
// How a step's batch is cut and packed for the device. Only host code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "models/step_batch_cuda.h"

namespace diffserve::cuda {
namespace {

constexpr int kPage = 64;

// A batch that owns its page tables.
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
  void DrawAfterEachToken() {
    batch.logit_rows.resize(batch.tokens.size());
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    batch.sample_rows.resize(batch.tokens.size(), {.kind = SampleKind::kGreedy});
  }
};

template <typename T>
std::vector<T> Read(const std::vector<std::byte>& bytes, size_t offset, size_t count) {
  std::vector<T> values(count);
  EXPECT_LE(offset + count * sizeof(T), bytes.size());
  if (count > 0) std::memcpy(values.data(), bytes.data() + offset, count * sizeof(T));
  return values;
}

std::vector<std::byte> BytesOf(const PackedStep& step) {
  std::vector<std::byte> bytes(step.size_bytes());
  step.Write(bytes.data());
  return bytes;
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
    const int64_t items_max = 3 * AttentionSplitsMax(tiling, 399, 1) +
                              static_cast<int64_t>(random() % 60);
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
                   AttentionSplitsMax(tiling, owned.batch.sequences[s].position + piece.first,
                                      piece.num_tokens);
        }
      }
      EXPECT_LE(items, items_max);
    }
    for (size_t s = 0; s < next.size(); ++s)
      EXPECT_EQ(next[s], owned.batch.sequences[s].num_tokens);
  }
}

TEST(StepBatchTest, PackedStepHoldsTokensPagesAndDrawsWithGeneratedRowsFirst) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    OwnedBatch owned = RandomBatch(random);
    const Batch& batch = owned.batch;
    owned.batch.adjustments.resize(random() % 5);
    owned.batch.masks.resize(random() % 3 * 7);
    std::iota(owned.batch.masks.begin(), owned.batch.masks.end(), 90000u);
    const std::vector<StepPass> passes = CutIntoPasses(batch, {1, 1}, 1 << 20);
    ASSERT_EQ(passes.size(), 1u);
    PackedStep packed;
    PackStep(batch, passes[0], {.page_size = kPage, .draws = true}, &packed);
    std::vector<std::byte> bytes = BytesOf(packed);
    ASSERT_EQ(packed.shape.num_tokens, static_cast<int>(batch.tokens.size()));
    const StepOffsets at(packed.shape);
    const auto entries = Read<DeviceSequence>(bytes, at.sequences,
                                              static_cast<size_t>(packed.shape.num_sequences));
    const auto tokens = Read<int32_t>(bytes, at.tokens, batch.tokens.size());
    const auto token_sequences = Read<int32_t>(bytes, at.token_sequences, batch.tokens.size());
    const auto logit_rows = Read<int32_t>(bytes, at.logit_rows, batch.logit_rows.size());
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
      const auto page = Read<int32_t>(bytes, page_at, 1);
      EXPECT_EQ(page[0], owned.pages[s][static_cast<size_t>(position / kPage)]);
    }
    EXPECT_EQ(Read<uint32_t>(bytes, at.tail, batch.masks.size()), batch.masks);
    const auto samples = Read<SampleTask>(bytes, at.sample_rows, batch.sample_rows.size());
    for (size_t i = 0; i < logit_rows.size(); ++i) {
      EXPECT_EQ(tokens[static_cast<size_t>(logit_rows[i])],
                batch.tokens[static_cast<size_t>(batch.logit_rows[i])]);
      EXPECT_EQ(samples[i].top_k, batch.sample_rows[i].top_k);
      const size_t begin = at.tail + static_cast<size_t>(samples[i].first_adjustment) *
                                         sizeof(LogitAdjustment);
      EXPECT_LE(begin + batch.adjustments.size() * sizeof(LogitAdjustment),
                std::max(bytes.size(), begin));
    }
  }
}

// A batch for layers with windows, with states, and last layers that keep nothing.
struct HybridBatch : OwnedBatch {
  std::vector<std::vector<int32_t>> window_pages;

  explicit HybridBatch(std::mt19937& random) : OwnedBatch(RandomBatch(random)) {
    window_pages = pages;
    batch.logit_rows.clear();
    batch.sample_rows.clear();
    for (size_t s = 0; s < batch.sequences.size(); ++s) {
      SequenceTokens& rows = batch.sequences[s];
      for (int32_t& page : window_pages[s]) page += 5000;
      if (random() % 4 > 0) rows.window_pages = window_pages[s].data();
      const auto slot = static_cast<int32_t>(100 * s);
      StateSlotUse& use = batch.states.emplace_back(slot, slot + 1);
      for (int token = 0; token < rows.num_tokens; ++token) {
        if (random() % 8 == 0) batch.logit_rows.push_back(rows.first_row + token);
        if (random() % 6 == 0) use.snapshots.push_back({token + 1, slot + 2 + token});
      }
    }
  }
};

bool AreSame(const std::vector<AttentionItem>& a, const std::vector<AttentionItem>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

constexpr StepNeeds kHybrid = {.has_windows = true, .has_states = true, .may_skip = true};

// Each layer's attention reads a plan: all slots of the rows in the pages of its table, once.
TEST(StepBatchTest, PlansFollowTheEntriesOfTheirLayers) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 200; ++trial) {
    HybridBatch owned(random);
    owned.batch.masks.resize(random() % 3 * 7);
    owned.batch.adjustments.resize(random() % 5);
    const StepTilings tilings[] = {
        {0, {2, 4}, {2, 64, kNoSplitSlots}},
        {100, {2, 8, kSplitsByLength, 100}, {2, 64, kNoSplitSlots, 100}}};
    PackedStep packed;
    PackStep(owned.batch, CutIntoPasses(owned.batch, {2, 4}, 1 << 20).at(0),
             {.needs = kHybrid, .tilings = tilings, .page_size = kPage}, &packed);
    std::vector<std::byte> bytes = BytesOf(packed);
    const DeviceStep step(packed.shape, bytes.data(), tilings);
    ASSERT_EQ(step.plans.size(), 2u);
    for (const StepTilings& of : tilings) {
      const DeviceStep::Plans& plans = step.PlansOf(of.window);
      const StepRows& rows = of.window > 0 ? step.in_windows : step.rows;
      const StepRows wanted = step.Wanted(rows);
      const bool has_one_entry_each = std::ranges::all_of(
          std::span(rows.all.sequences, static_cast<size_t>(rows.all.num_sequences)),
          [](const DeviceSequence& entry) { return entry.num_tokens_after == 0; });
      EXPECT_EQ(plans.generated.head->keeps_earlier_slots != 0, has_one_entry_each);
      const auto items_of = [&](const AttentionPlan& plan) {
        const AttentionItem* items = plan.items + plan.head->first_item;
        const auto count = static_cast<size_t>(plan.head->num_items);
        EXPECT_LE(reinterpret_cast<const std::byte*>(items + count), bytes.data() + bytes.size());
        return std::vector<AttentionItem>(items, items + count);
      };
      const auto expected_of = [](const PagedBatch& batch, const AttentionTiling& tiling) {
        std::vector<AttentionItem> expected;
        PlanAttention({batch.sequences, static_cast<size_t>(batch.num_sequences)}, tiling,
                      &expected);
        return expected;
      };
      EXPECT_TRUE(AreSame(items_of(plans.generated), expected_of(rows.generated, of.generated)));
      for (const auto& [runs, batch] :
           {std::pair{plans.prompts, rows.prompts}, {plans.wanted_prompts, wanted.prompts}}) {
        std::vector<AttentionItem> items;
        for (const DeviceStep::PromptRun& run : runs) {
          EXPECT_EQ(run.plan.head->keeps_earlier_slots, 0);
          for (const AttentionItem& item : items_of(run.plan)) {
            const int end = item.first_page + (item.position + item.num_tokens + kPage - 1) / kPage;
            EXPECT_GE(item.first_page, run.pages.first_page);
            EXPECT_LE(end, run.pages.first_page + run.pages.num_pages);
            items.push_back(item);
          }
        }
        EXPECT_TRUE(AreSame(items, expected_of(batch, of.prompts)));
      }
    }
  }
}

// Several prompts share a run if their pages have room together. A longer prompt has a run alone.
TEST(StepBatchTest, PromptsAreCutIntoRunsByTheirPages) {
  OwnedBatch owned;
  for (const int pages : {2, 3, 9, 1, 1, 4}) owned.Add(0, pages * kPage, pages * kPage);
  owned.Add(130, 1, 0);
  const StepTilings tilings[] = {{0, {1, 1}, {1, 64, kNoSplitSlots}}};
  PackedStep packed;
  PackStep(owned.batch, CutIntoPasses(owned.batch, {1, 1}, 1 << 20).at(0),
           {.tilings = tilings, .page_size = kPage, .prompt_pages_max = 6}, &packed);
  ASSERT_EQ(packed.shape.plans.size(), 1u);
  std::vector<std::pair<int, int>> runs;
  for (const StepShape::PromptRun& run : packed.shape.plans[0].prompts)
    runs.emplace_back(run.first_page, run.num_pages);
  const std::vector<std::pair<int, int>> expected = {{3, 5}, {8, 9}, {17, 6}};
  EXPECT_EQ(runs, expected);  // after the three pages of the generated token
}

// So that an entry has splits of one size.
TEST(StepBatchTest, GeneratedTokensAreCutWhereTheSizeOfSplitsChanges) {
  OwnedBatch owned;
  owned.Add(16382, 6, 1);  // 16383, and then 16384 to 16387
  owned.Add(4094, 4, 0);   // 4094 and 4095, and then 4096 and 4097
  owned.Add(65530, 8, 0);
  owned.Add(16382, 6, 6);  // a prompt is not
  owned.batch.states = {{0, 0}, {1, 1}, {2, 2}, {3, 3}};
  const std::vector<StepPass> passes = CutIntoPasses(owned.batch, {1, 1}, 1 << 20);
  ASSERT_EQ(passes.size(), 1u);
  PackedStep packed;
  PackStep(owned.batch, passes[0],
           {.needs = {.has_windows = true, .has_states = true}, .page_size = kPage}, &packed);
  ASSERT_EQ(packed.shape.num_generated_sequences, 6);
  std::vector<std::byte> bytes = BytesOf(packed);
  const StepOffsets at(packed.shape);
  for (const size_t offset : {at.sequences, at.in_windows}) {
    const auto entries = Read<DeviceSequence>(bytes, offset, 8);
    const int positions[] = {16384, 16383, 4096, 4094, 65536, 65530, 16382, 16382},
              num_tokens[] = {4, 1, 2, 2, 2, 6, 1, 6}, after[] = {0, 4, 0, 2, 0, 2, 5, 0};
    int row = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      EXPECT_EQ(entries[i].first_row, row) << i;
      EXPECT_EQ(entries[i].position, positions[i]) << i;
      EXPECT_EQ(entries[i].num_tokens, num_tokens[i]) << i;
      EXPECT_EQ(entries[i].num_tokens_after, after[i]) << i;
      row += num_tokens[i];
    }
  }
  const DeviceStep step(packed.shape, bytes.data(), {});
  ASSERT_EQ(step.waves.size(), 3u);  // the first sequence's prompt, and its two generated entries
  EXPECT_EQ(step.waves[0].num_sequences, 4);
  EXPECT_EQ(step.waves[1].num_sequences, 3);
  EXPECT_EQ(step.waves[2].num_sequences, 1);
}

TEST(StepBatchTest, PaddingHasNoTokensAndDrawsNothing) {
  OwnedBatch owned;
  for (int s = 0; s < 5; ++s) owned.Add(70 + s, 1, 0);
  PackedStep packed;
  PackStep(owned.batch, CutIntoPasses(owned.batch, {1, 1}, 1 << 20)[0],
           {.page_size = kPage, .draws = true, .num_padded = 8}, &packed);
  std::vector<std::byte> bytes = BytesOf(packed);
  EXPECT_EQ(packed.shape.num_tokens, 8);
  EXPECT_EQ(packed.shape.num_generated_tokens, 8);
  EXPECT_EQ(packed.shape.num_logit_rows, 8);
  const StepOffsets at(packed.shape);
  const auto entries = Read<DeviceSequence>(bytes, at.sequences, 8);
  const auto samples = Read<SampleTask>(bytes, at.sample_rows, 8);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(entries[i].num_tokens, i < 5 ? 1 : 0);
    EXPECT_EQ(samples[i].kind, i < 5 ? SampleKind::kGreedy : SampleKind::kNothing);
    EXPECT_EQ(entries[i].first_row, static_cast<int>(i));
  }
}

TEST(StepBatchTest, PaddedStepOfProposedTokensHasEntriesWithoutTokens) {
  OwnedBatch owned;
  owned.Add(70, 3, 0);
  owned.Add(80, 1, 0);
  owned.DrawAfterEachToken();
  PackedStep packed;
  PackStep(owned.batch, CutIntoPasses(owned.batch, {1, 3, 512}, 1 << 20)[0],
           {.needs = {.has_windows = true}, .page_size = kPage, .draws = true, .num_padded = 8},
           &packed);
  std::vector<std::byte> bytes = BytesOf(packed);
  EXPECT_EQ(packed.shape.num_tokens, 8);
  EXPECT_EQ(packed.shape.num_sequences, 8);
  EXPECT_EQ(packed.shape.num_logit_rows, 8);
  const StepOffsets at(packed.shape);
  for (const size_t offset : {at.sequences, at.in_windows}) {
    const auto entries = Read<DeviceSequence>(bytes, offset, 8);
    const int num_tokens[] = {3, 1, 0, 0, 0, 0, 0, 0}, first_rows[] = {0, 3, 4, 5, 6, 7, 8, 8};
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(entries[i].num_tokens, num_tokens[i]);
      EXPECT_EQ(entries[i].first_row, first_rows[i]);
    }
  }
  EXPECT_EQ(Read<int32_t>(bytes, at.token_sequences, 8),
            (std::vector<int32_t>{0, 0, 0, 1, 2, 3, 4, 5}));
}

// The sequence of a packed row and the index of its token.
std::pair<size_t, int> Find(const DeviceStep& step, int row) {
  return {static_cast<size_t>(step.tokens[row] / 1000 - 1), step.tokens[row] % 1000};
}

TEST(StepBatchTest, TokensThatAllLayersComputeComeFirstAndWindowsHaveTheirPages) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const HybridBatch owned(random);
    const Batch& batch = owned.batch;
    const StepPass pass = CutIntoPasses(batch, {1, 1, 64}, 1 << 20).at(0);
    PackedStep packed;
    PackStep(batch, pass, {.needs = kHybrid, .page_size = kPage}, &packed);
    std::vector<std::byte> bytes = BytesOf(packed);
    const StepShape& shape = packed.shape;
    EXPECT_EQ(shape.num_tokens, static_cast<int>(batch.tokens.size()));
    const DeviceStep step(shape, bytes.data(), {});
    for (int row = 0; row < shape.num_tokens; ++row) {
      const auto [s, token] = Find(step, row);
      const SequenceTokens& rows = batch.sequences[s];
      const bool is_wanted = std::ranges::any_of(batch.logit_rows, [&](int wanted) {
        return wanted >= rows.first_row && wanted <= rows.first_row + token;
      });
      const bool is_generated = token >= batch.num_prompt_tokens[s];
      EXPECT_EQ(row < shape.num_wanted_tokens, is_wanted || is_generated);
      EXPECT_EQ(row < shape.num_generated_tokens, is_generated);
      for (const StepRows* in : {&step.rows, &step.in_windows}) {
        const DeviceSequence& entry = in->all.sequences[in->all.token_sequences[row]];
        const int page = (rows.position + token) / kPage;
        const bool has_own = in == &step.in_windows && rows.window_pages != nullptr;
        EXPECT_EQ(entry.position + row - entry.first_row, rows.position + token);
        EXPECT_EQ(entry.first_row + entry.num_tokens + entry.num_tokens_after - row,
                  rows.num_tokens - token);
        EXPECT_EQ(in->all.pages[entry.first_page + page],
                  (has_own ? rows.window_pages : rows.pages)[page]);
      }
    }
    const StepRows wanted = step.Wanted(step.rows);
    int covered = 0;
    for (const PagedBatch* of : {&wanted.generated, &wanted.prompts}) {
      for (int i = 0; i < of->num_sequences; ++i) covered += of->sequences[i].num_tokens;
    }
    EXPECT_EQ(covered, shape.num_wanted_tokens);
    EXPECT_EQ(wanted.all.num_tokens, shape.num_wanted_tokens);
    EXPECT_EQ(wanted.all.num_sequences,
              wanted.generated.num_sequences + wanted.prompts.num_sequences);
  }
}

TEST(StepBatchTest, StatesAdvanceInTokenOrderWithSnapshotsBetweenTokens) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const HybridBatch owned(random);
    const Batch& batch = owned.batch;
    std::vector<int> taken_on(batch.sequences.size(), 0);  // tokens whose states are computed
    std::vector<int32_t> state(batch.sequences.size());    // their slots
    for (size_t s = 0; s < state.size(); ++s)
      state[s] = batch.sequences[s].position == 0 ? kNoState : batch.states[s].from;
    for (const StepPass& pass : CutIntoPasses(batch, {1, 1, 64}, 30)) {
      PackedStep packed;
      PackStep(batch, pass, {.needs = kHybrid, .page_size = kPage}, &packed);
      std::vector<std::byte> bytes = BytesOf(packed);
      const DeviceStep step(packed.shape, bytes.data(), {});
      for (const StateBatch& wave : step.waves) {
        std::set<size_t> seen;
        int tokens = 0, most = 0;
        for (int i = 0; i < wave.num_sequences; ++i) {
          const StateSequence& run = wave.sequences[i];
          const auto [s, token] = Find(step, run.first_row);
          const int end = token + run.num_tokens;
          EXPECT_TRUE(seen.insert(s).second) << "a sequence twice in a wave";
          EXPECT_EQ(Find(step, run.first_row + run.num_tokens - 1), std::pair(s, end - 1));
          EXPECT_EQ(token, std::exchange(taken_on[s], end));
          EXPECT_EQ(run.from, std::exchange(state[s], run.to));
          tokens += run.num_tokens;
          most = std::max(most, run.num_tokens);
          for (const StateSnapshot& snapshot : batch.states[s].snapshots) {
            EXPECT_FALSE(snapshot.num_tokens > token && snapshot.num_tokens < end);
            EXPECT_EQ(snapshot.num_tokens == end, run.to == snapshot.slot) << "kept elsewhere";
          }
        }
        EXPECT_EQ(wave.num_tokens, tokens);
        EXPECT_EQ(wave.num_tokens_max, most);
      }
    }
    for (size_t s = 0; s < taken_on.size(); ++s)
      EXPECT_EQ(taken_on[s], batch.sequences[s].num_tokens);
  }
}

TEST(StepBatchTest, ShapeOfAPaddedStepIsIndependentOfItsSequences) {
  for (int sequences : {3, 5, 8}) {
    OwnedBatch owned;
    for (int s = 0; s < sequences; ++s) {
      owned.Add(70 + s, 1, 0);
      owned.batch.states.push_back({s, s});
      if (s % 2 == 0) owned.batch.states.back().snapshots = {{1, 20 + s}};
    }
    PackedStep packed;
    PackStep(owned.batch, CutIntoPasses(owned.batch, {1, 1}, 1 << 20)[0],
             {.needs = kHybrid, .page_size = kPage, .draws = true, .num_padded = 8}, &packed);
    std::vector<std::byte> bytes = BytesOf(packed);
    const DeviceStep step(packed.shape, bytes.data(), {});
    ASSERT_EQ(step.waves.size(), 1u);
    EXPECT_EQ(step.waves[0].num_sequences, 8);
    EXPECT_EQ(step.num_wanted_tokens, 8);
    for (int i = 0; i < 8; ++i) {
      const StateSequence& run = step.waves[0].sequences[i];
      EXPECT_EQ(run.num_tokens, i < sequences ? 1 : 0);
      EXPECT_EQ(step.in_windows.all.sequences[i].num_tokens, run.num_tokens);
      EXPECT_EQ(run.to, i >= sequences ? 0 : i % 2 == 0 ? 20 + i : i);
    }
    EXPECT_EQ(step.waves[0].num_tokens, 8);
    EXPECT_EQ(step.waves[0].num_tokens_max, 1);
  }
}

TEST(StepBatchTest, FewGraphsServeAllDecodeSizesWithLittlePadding) {
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

TEST(StepBatchTest, DecodeStepHasOnlyGeneratedRowsThatDraw) {
  OwnedBatch owned;
  for (int s = 0; s < 3; ++s) owned.Add(9 + s, 1, 0);
  EXPECT_TRUE(IsDecode(owned.batch, {}));
  Batch changed = owned.batch;
  changed.num_prompt_tokens[1] = 1;
  EXPECT_FALSE(IsDecode(changed, {}));
  changed = owned.batch;
  changed.sample_rows.clear();
  EXPECT_FALSE(IsDecode(changed, {}));
  changed = owned.batch;
  changed.num_prompt_tokens.clear();  // all rows belong to a prompt
  EXPECT_FALSE(IsDecode(changed, {}));
  owned.Add(5, 2, 0);
  EXPECT_FALSE(IsDecode(owned.batch, {}));
  owned.DrawAfterEachToken();
  EXPECT_TRUE(IsDecode(owned.batch, {}));
  EXPECT_FALSE(IsDecode(owned.batch, {.has_states = true}));
}

}  // namespace
}  // namespace diffserve::cuda
