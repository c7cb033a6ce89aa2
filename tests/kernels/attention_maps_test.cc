// SPDX-License-Identifier: Apache-2.0
// The attention maps of single queries: exact cases, and the float32 logits compared with the
// double-precision reference. diff_attention_test.cc checks that kernels attend by these maps.
#include "kernels/attention/attention_maps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/attention/decoded_keys.h"
#include "tests/testing/kernels/attention_batch.h"
#include "tests/testing/kernels/attention_specs.h"

namespace diffserve {
namespace {

using testing::AttentionBatch;

constexpr DType kPageTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8};

AttentionBatch MakeBatch(const DiffSpec& spec, DType pages) {
  return {spec, {{0, 5}, {30, 9}}, {.format = KvFormat::Of(spec, 16, pages)}};
}

double SumOf(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST(AttentionMapsTest, BothMapsOfASingleSlotAreOne) {
  AttentionBatch batch = MakeBatch(testing::DiffLlamaSpec(2, 1, 8), DType::kFloat32);
  std::vector<float> out;
  const DiffAttentionArgs<float> args = batch.Args(out);
  const AttentionMaps maps = AttentionMapsRef(args, args.batch[0], 0, 1);
  EXPECT_EQ(maps.first.p, std::vector<double>{1});
  EXPECT_EQ(maps.second.p, std::vector<double>{1});
  EXPECT_EQ(maps.lambda, static_cast<double>(0.35f));
  EXPECT_EQ(maps.w, std::vector<double>{1 - static_cast<double>(0.35f)});
}

TEST(AttentionMapsTest, LogitsThatDifferByLog3AreWeightedOneToThree) {
  AttentionBatch batch = MakeBatch(testing::DiffLlamaSpec(1, 1, 4), DType::kFloat32);
  batch.q.assign(batch.q.size(), 0.0f);
  for (int slot : {0, 1}) {
    for (int map : {0, 1}) batch.SetKRow(0, 0, slot, map, std::vector<float>(4));
  }
  // The second row: map 1 sees slot 1 at log 3, map 2 sees both slots equally. The scale is 1/2.
  const size_t row = static_cast<size_t>(batch.spec.q_width());
  batch.q[row] = 2.0f;
  batch.SetK(0, 0, 1, 0, 0, std::log(3.0f));
  std::vector<float> out;
  const DiffAttentionArgs<float> args = batch.Args(out);
  const AttentionMaps maps = AttentionMapsRef(args, args.batch[0], 1, 0);
  ASSERT_EQ(maps.w.size(), 2u);
  EXPECT_NEAR(maps.first.logits[1], std::log(3.0), 1e-7);
  EXPECT_NEAR(maps.first.p[0], 0.25, 1e-7);
  EXPECT_NEAR(maps.first.p[1], 0.75, 1e-7);
  EXPECT_EQ(maps.second.p, (std::vector<double>{0.5, 0.5}));
  EXPECT_NEAR(maps.w[0], 0.25 - 0.35 * 0.5, 1e-7);
  EXPECT_NEAR(maps.w[1], 0.75 - 0.35 * 0.5, 1e-7);
}

// Heads and groups of the last sequence's row 4, at position 34.
TEST(AttentionMapsTest, EachHeadReadsItsGroupAndItsNoiseHead) {
  struct Case {
    DiffSpec spec;
    int head, noise_head, group, k_map;
  };
  for (const Case& c :
       {Case{testing::DiffLlamaSpec(4, 2, 8), 3, 3, 1, 1},
        Case{testing::GroupedSpec(2, 8), 5, 1, 1, 1}, Case{testing::V2Spec(4, 2, 8), 1, 1, 0, 0}}) {
    AttentionBatch batch = MakeBatch(c.spec, DType::kBFloat16);
    std::vector<float> out;
    const DiffAttentionArgs<float> args = batch.Args(out);
    const SequenceTokens& sequence = args.batch[1];
    const AttentionMaps maps = AttentionMapsRef(args, sequence, 4, c.head);
    ASSERT_EQ(maps.second.logits.size(), 35u) << testing::Describe(c.spec);
    const float* q = args.q + (5 + 4) * c.spec.q_width();
    for (int slot = 0; slot < 35; ++slot) {
      const std::byte* page = args.kv.Page(sequence.pages[slot / 16], c.group);
      double logit1 = 0, logit2 = 0;
      for (int d = 0; d < 8; ++d) {
        const auto k = [&](int map) {
          return double{KValue(args.kv.format, page, map, d, slot % 16)};
        };
        logit1 += double{q[8 * c.head + d]} * k(0);
        logit2 += double{q[8 * (c.spec.num_q1_heads + c.noise_head) + d]} * k(c.k_map);
      }
      const size_t at = static_cast<size_t>(slot);
      EXPECT_NEAR(maps.first.logits[at], logit1 * double{args.scale}, 1e-12);
      EXPECT_NEAR(maps.second.logits[at], logit2 * double{args.scale}, 1e-12);
      EXPECT_NEAR(maps.w[at], maps.first.p[at] - maps.lambda * maps.second.p[at], 1e-15);
    }
    EXPECT_NEAR(SumOf(maps.first.p), 1, 1e-12);
    EXPECT_NEAR(SumOf(maps.w), 1 - maps.lambda, 1e-12);
  }
}

TEST(AttentionMapsTest, LambdaMayDependOnTokenAndHead) {
  AttentionBatch batch = MakeBatch(testing::V2Spec(4, 2, 8), DType::kFloat32);
  std::vector<float> out;
  const DiffAttentionArgs<float> args = batch.Args(out);
  EXPECT_EQ(AttentionMapsRef(args, args.batch[1], 4, 2).lambda,
            static_cast<double>(batch.lambda_rows[(5 + 4) * 4 + 2]));
}

TEST(AttentionMapsTest, PlainAttentionHasOneMap) {
  AttentionBatch batch = MakeBatch(testing::PlainSpec(2, 1, 8), DType::kFloat32);
  std::vector<float> out;
  const DiffAttentionArgs<float> args = batch.Args(out);
  const AttentionMaps maps = AttentionMapsRef(args, args.batch[0], 3, 1);
  EXPECT_EQ(maps.w, maps.first.p);
  EXPECT_TRUE(maps.second.p.empty());
}

// The same as over only the slots of the window.
TEST(AttentionMapsTest, SlotsBeforeTheWindowGetNoWeight) {
  for (const DiffSpec& spec : {testing::DiffLlamaSpec(4, 2, 8), testing::PlainSpec(2, 1, 8)}) {
    AttentionBatch batch = MakeBatch(spec, DType::kFloat32);
    std::vector<float> out;
    const AttentionMaps whole = AttentionMapsRef(batch.Args(out), batch.Args(out).batch[1], 4, 1);
    batch.window = 10;
    batch.ForgetPagesBehindWindow();
    const DiffAttentionArgs<float> args = batch.Args(out);
    const AttentionMaps maps = AttentionMapsRef(args, args.batch[1], 4, 1);
    ASSERT_EQ(maps.w.size(), 35u);
    double sum1 = 0, sum2 = 0;
    for (size_t slot = 25; slot < 35; ++slot) {
      sum1 += whole.first.p[slot];
      if (spec.has_second_map()) sum2 += whole.second.p[slot];
    }
    for (size_t slot = 0; slot < 35; ++slot) {
      const bool is_seen = slot >= 25;
      EXPECT_EQ(maps.first.logits[slot], is_seen ? whole.first.logits[slot] : -HUGE_VAL);
      EXPECT_NEAR(maps.first.p[slot], is_seen ? whole.first.p[slot] / sum1 : 0, 1e-12);
      if (spec.has_second_map()) {
        EXPECT_NEAR(maps.second.p[slot], is_seen ? whole.second.p[slot] / sum2 : 0, 1e-12);
      }
      if (!is_seen) {
        EXPECT_EQ(maps.w[slot], 0);
      }
    }
    EXPECT_NEAR(SumOf(maps.w), 1 - maps.lambda, 1e-12);
  }
}

TEST(AttentionMapsTest, KeysOfSeveralRowsServeTheWindowOfEach) {
  AttentionBatch batch = MakeBatch(testing::DiffLlamaSpec(2, 1, 8), DType::kBFloat16);
  batch.window = 7;
  batch.ForgetPagesBehindWindow();
  std::vector<float> out;
  const DiffAttentionArgs<float> args = batch.Args(out);
  const GroupKeys keys = GroupKeysRef(args, args.batch[1], 0);
  EXPECT_EQ(keys.first_slot, 24);
  for (int row : {0, 8}) {
    EXPECT_EQ(AttentionMapsRef(args, args.batch[1], row, 1, keys).w,
              AttentionMapsRef(args, args.batch[1], row, 1).w);
  }
}

TEST(AttentionMapsTest, LogitsAreTheQuantisedOnes) {
  AttentionBatch batch = MakeBatch(testing::DiffLlamaSpec(2, 1, 8), DType::kFloat32);
  std::vector<float> out;
  DiffAttentionArgs<float> args = batch.Args(out);
  std::vector<double> expected = AttentionMapsRef(args, args.batch[1], 2, 1).first.logits;
  QuantiseLogitsRef(expected, {4, LogitScale::kRow});
  args.logit_quant = {4, LogitScale::kRow};
  EXPECT_EQ(AttentionMapsRef(args, args.batch[1], 2, 1).first.logits, expected);
}

TEST(DecodedKeysTest, LogitsEqualTheReferenceForEveryPageFormat) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  for (DType pages : kPageTypes) {
    for (const DiffSpec& spec : {testing::DiffLlamaSpec(4, 2, 16), testing::V2Spec(4, 2, 20),
                                 testing::PlainSpec(2, 1, 64)}) {
      AttentionBatch batch = MakeBatch(spec, pages);
      std::vector<float> out;
      const DiffAttentionArgs<float> args = batch.Args(out);
      const SequenceTokens& sequence = args.batch[1];
      const DecodedKeys keys(args.kv, sequence, pool);
      for (int row : {0, 8}) {
        const int head = spec.num_q1_heads - 1;
        const float* q = args.q + (5 + row) * spec.q_width();
        const AttentionMaps maps = AttentionMapsRef(args, sequence, row, head);
        std::vector<float> logits(static_cast<size_t>(31 + row), -77.0f);
        keys.Logits(spec.num_kv_groups - 1, 0, q + head * spec.head_dim, args.scale, logits);
        ASSERT_EQ(logits.size(), maps.first.logits.size());
        for (size_t i = 0; i < logits.size(); ++i)
          EXPECT_NEAR(logits[i], maps.first.logits[i], 2e-6) << NameOf(pages) << " slot " << i;
        if (!spec.has_second_map()) continue;
        q += (spec.num_q1_heads + spec.num_q2_heads - 1) * spec.head_dim;
        keys.Logits(spec.num_kv_groups - 1, spec.k_maps - 1, q, args.scale, logits);
        for (size_t i = 0; i < logits.size(); ++i)
          EXPECT_NEAR(logits[i], maps.second.logits[i], 2e-6) << NameOf(pages) << " slot " << i;
      }
    }
  }
}

}  // namespace
}  // namespace diffserve
