// SPDX-License-Identifier: Apache-2.0
// The definition of sampling: the distribution in double precision, order of operations, ties, keys
// and log-probabilities. Tested on the CPU, whose bits are every backend's (sample_test.cc).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/sample_arithmetic.h"
#include "tests/testing/kernels/kernel_levels.h"

namespace diffserve {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNanLogit = std::numeric_limits<float>::quiet_NaN();

// The inputs of a draw, with its logits.
struct Draw : DrawContext {
  std::span<const float> logits;
};

SampledToken RunTask(std::span<const float> logits, const SampleTask& task,
                     std::vector<LogitAdjustment> adjustments = {}) {
  static ThreadPool pool({.num_threads = 1});
  std::vector<float> row(logits.begin(), logits.end());
  SampledToken sampled;
  cpu::Sample({.logits = row.data(),
               .vocab_size = static_cast<int>(row.size()),
               .num_rows = 1,
               .tasks = &task,
               .adjustments = adjustments.data(),
               .sampled = &sampled},
              testing::EightLanes(), pool);
  return sampled;
}

SampleResult Sample(Draw draw) {
  draw.vocab_size = static_cast<int>(draw.logits.size());
  std::vector<LogitAdjustment> adjustments;
  const SampleTask task = PackDraw(draw, &adjustments);
  return ToSampleResult(task, RunTask(draw.logits, task, adjustments));
}

SampleResult ScoreToken(std::span<const float> logits, int32_t token, int num_top) {
  const SampleTask task = PackScore(token, num_top);
  return ToSampleResult(task, RunTask(logits, task));
}

std::vector<float> RandomRow(int vocab, uint32_t seed, float spread = 2.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> row(vocab);
  for (float& logit : row) logit = normal(random);
  return row;
}

// The distribution that sample.h describes, in double precision and by full sorts: the probability
// of each token.
std::vector<double> ReferenceDistribution(const Draw& args) {
  const SamplingParams& params = *args.params;
  const int vocab = static_cast<int>(args.logits.size());
  std::vector<double> logits(args.logits.begin(), args.logits.end());
  for (const auto& [token, bias] : params.logit_bias) logits[token] += bias;
  std::map<int32_t, int> generated;
  for (int32_t token : args.output_tokens) ++generated[token];
  std::map<int32_t, int> seen = generated;
  for (int32_t token : args.prompt_tokens) ++seen[token];
  for (const auto& [token, count] : seen) {
    logits[token] = logits[token] > 0 ? logits[token] / params.repetition_penalty
                                      : logits[token] * params.repetition_penalty;
  }
  for (const auto& [token, count] : generated) {
    logits[token] -= double{params.frequency_penalty} * count + params.presence_penalty;
  }
  for (int32_t token : args.banned_tokens) logits[token] = -kInf;

  std::vector<int> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  std::vector<double> weights(vocab);
  for (int i = 0; i < vocab; ++i)
    weights[i] = std::exp((logits[i] - logits[order[0]]) / params.temperature);
  if (params.top_k > 0) {
    for (int rank = params.top_k; rank < vocab; ++rank) weights[order[rank]] = 0;
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double cumulative = 0;
  for (int i : order) {
    if (cumulative >= params.top_p * total) weights[i] = 0;
    cumulative += weights[i];
    if (weights[i] < params.min_p) weights[i] = 0;
  }
  const double kept = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= kept;
  return weights;
}

// Draws at positions 0, 1, ... and compares the frequencies with the reference by Pearson's
// chi-square, at five standard deviations.
void ExpectDistribution(Draw args, int draws = 20000) {
  const std::vector<double> expected = ReferenceDistribution(args);
  std::vector<int> counts(expected.size(), 0);
  for (int draw = 0; draw < draws; ++draw) {
    args.position = draw;
    const SampleResult result = Sample(args);
    ASSERT_TRUE(result.finite);
    ASSERT_GT(expected[result.token], 0.0) << "token " << result.token << " is filtered out";
    ++counts[result.token];
  }
  double chi_square = 0, rare_expected = 0;
  int classes = 0, rare_count = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i] * draws;
    if (e < 8) {
      rare_expected += e;
      rare_count += counts[i];
      continue;
    }
    chi_square += (counts[i] - e) * (counts[i] - e) / e;
    ++classes;
  }
  if (rare_expected >= 8) {
    chi_square += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected;
    ++classes;
  }
  const double freedom = std::max(1, classes - 1);
  EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 1) << classes << " classes";
}

class SampleDistributionTest : public ::testing::TestWithParam<SamplingParams> {};

TEST_P(SampleDistributionTest, EqualsTheReference) {
  const SamplingParams params = GetParam();
  for (int vocab : {7, 100, 700}) {
    const std::vector<float> row = RandomRow(vocab, vocab);
    const std::vector<int32_t> prompt = {1, 1, 2}, output = {3, 3, 3, 2, 4}, banned = {0, 5};
    Draw args;
    args.logits = row;
    args.params = &params;
    args.prompt_tokens = prompt;
    args.output_tokens = output;
    ExpectDistribution(args, 4000);
    args.banned_tokens = banned;
    args.sequence = 3;
    ExpectDistribution(args, 4000);
  }
}

std::vector<SamplingParams> DistributionCases() {
  const SamplingParams plain{.seed = 42};
  std::vector<SamplingParams> cases(12, plain);
  cases[1].temperature = 0.3f;
  cases[2].temperature = 3.0f;
  cases[3].top_k = 5;
  cases[4].top_p = 0.6f;
  cases[5].min_p = 0.1f;
  cases[6].presence_penalty = 1.5f;
  cases[7].frequency_penalty = -0.7f;
  cases[8].repetition_penalty = 1.8f;
  cases[9].logit_bias = {{6, 3.5f}, {2, -100.0f}};
  cases[10] = {.temperature = 1.3f, .top_p = 0.8f, .top_k = 30, .min_p = 0.02f, .seed = 9};
  cases[11] = {.temperature = 0.8f,
               .top_p = 0.95f,
               .top_k = 6,
               .presence_penalty = -0.5f,
               .frequency_penalty = 0.3f,
               .repetition_penalty = 1.1f,
               .logit_bias = {{1, 2.0f}},
               .seed = 1};
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Params, SampleDistributionTest, ::testing::ValuesIn(DistributionCases()));

// Which tokens can be drawn at all, on rows of many sizes and with each filter's edge. Every token
// of the reference's set with a probability of at least a hundredth of an even share is drawn, and
// no token outside the set.
TEST(SampleDefinitionTest, FiltersKeepTheSetOfTheReference) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const int vocab = 1 + static_cast<int>(random() % 60);
    std::vector<float> row = RandomRow(vocab, round, 1.5f);
    if (round % 3 == 0) {
      for (float& logit : row) logit = std::round(logit);  // ties everywhere
    }
    SamplingParams params{.temperature = 0.5f + static_cast<float>(random() % 4), .seed = random()};
    if (random() % 2) params.top_k = 1 + static_cast<int>(random() % 20);
    if (random() % 2) params.top_p = 0.05f + 0.01f * static_cast<float>(random() % 95);
    if (random() % 2) params.min_p = 0.01f * static_cast<float>(random() % 100);
    Draw args;
    args.logits = row;
    args.params = &params;
    const std::vector<double> expected = ReferenceDistribution(args);
    std::vector<int> counts(vocab, 0);
    for (int draw = 0; draw < 1500; ++draw) {
      args.position = draw;
      ++counts[Sample(args).token];
    }
    for (int i = 0; i < vocab; ++i) {
      EXPECT_TRUE(expected[i] > 0.0 || counts[i] == 0) << "round " << round << " token " << i;
      EXPECT_TRUE(expected[i] <= 0.01 || counts[i] > 0) << "round " << round << " token " << i;
    }
  }
}

TEST(SampleDefinitionTest, LargeVocabularyIsFiltered) {
  std::vector<float> row = RandomRow(130000, 1, 1.0f);
  for (const SamplingParams& params :
       {SamplingParams{.top_k = 40, .seed = 2}, SamplingParams{.top_p = 0.001f, .seed = 2},
        SamplingParams{.min_p = 0.7f, .seed = 2}}) {
    Draw args;
    args.logits = row;
    args.params = &params;
    ExpectDistribution(args, 300);
  }
}

TEST(SampleDefinitionTest, GreedyTakesTheLargestAndTiesGoToTheSmallestId) {
  SamplingParams params{.temperature = 0};
  std::vector<float> row(100, -1.0f);
  row[17] = row[40] = row[99] = 5.0f;
  Draw args;
  args.logits = row;
  args.params = &params;
  EXPECT_EQ(Sample(args).token, 17);
  const std::vector<int32_t> banned = {17};
  args.banned_tokens = banned;
  EXPECT_EQ(Sample(args).token, 40);
  params.logit_bias = {{99, 0.5f}};
  EXPECT_EQ(Sample(args).token, 99);
  params.logit_bias.clear();
  std::fill(row.begin(), row.end(), -1.0f);
  row[20] = -0.0f;
  row[21] = 0.0f;
  EXPECT_EQ(Sample(args).token, 20) << "zero and minus zero are equal";
}

TEST(SampleDefinitionTest, PenaltiesMoveTheGreedyChoiceAsDefined) {
  const std::vector<float> row = {1.0f, 2.0f, 1.9f, -1.0f};
  const std::vector<int32_t> prompt = {1}, output = {2, 2};
  SamplingParams params{.temperature = 0};
  Draw args;
  args.logits = row;
  args.params = &params;
  args.prompt_tokens = prompt;
  EXPECT_EQ(Sample(args).token, 1);
  params.presence_penalty = 2.0f;
  EXPECT_EQ(Sample(args).token, 1) << "presence counts generated tokens only";
  params.repetition_penalty = 1.1f;
  EXPECT_EQ(Sample(args).token, 2) << "repetition counts the prompt as well";
  args.output_tokens = output;
  EXPECT_EQ(Sample(args).token, 1);
  params = SamplingParams{.temperature = 0, .frequency_penalty = -0.1f};
  EXPECT_EQ(Sample(args).token, 2) << "1.9 + 2 * 0.1";
}

TEST(SampleDefinitionTest, DrawDependsOnlyOnSeedSequenceAndPosition) {
  const std::vector<float> row = RandomRow(1000, 3);
  const std::vector<float> other_row = RandomRow(5000, 4);
  SamplingParams params{.seed = 77};
  Draw args;
  args.logits = row;
  args.params = &params;
  std::vector<int32_t> first, second, other_sequence, other_seed;
  for (int position = 0; position < 50; ++position) {
    args.position = position;
    first.push_back(Sample(args).token);
    Draw other = args;  // draws for others in between do not matter
    other.logits = other_row;
    Sample(other);
    second.push_back(Sample(args).token);
    other = args;
    other.sequence = 1;
    other_sequence.push_back(Sample(other).token);
    SamplingParams seeded = params;
    seeded.seed = 78;
    other = args;
    other.params = &seeded;
    other_seed.push_back(Sample(other).token);
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other_sequence);
  EXPECT_NE(first, other_seed);
}

TEST(SampleDefinitionTest, DrawsHaveTheseValuesOnEveryMachine) {
  const std::vector<float> row(1 << 16, 0.0f);
  SamplingParams params{.seed = 1};
  Draw args;
  args.logits = row;
  args.params = &params;
  std::vector<int32_t> tokens;
  for (uint64_t position : {0, 1, 2, 1000000}) {
    args.position = position;
    tokens.push_back(Sample(args).token);
  }
  EXPECT_EQ(tokens, (std::vector<int32_t>{58344, 44040, 16213, 23409}));
}

TEST(SampleDefinitionTest, NonFiniteRowIsReported) {
  SamplingParams params;
  for (int vocab : {1, 16, 100, 8193}) {
    for (float bad : {kNanLogit, -kNanLogit, kInf}) {
      for (int place : {0, vocab / 2, vocab - 1}) {
        std::vector<float> row = RandomRow(vocab, 1);
        Draw args;
        args.logits = row;
        args.params = &params;
        EXPECT_TRUE(Sample(args).finite);
        row[place] = bad;
        EXPECT_FALSE(Sample(args).finite) << vocab << " " << place;
        EXPECT_FALSE(ScoreToken(row, 0, 3).finite);
      }
    }
    const std::vector<float> nothing(vocab, -kInf);
    Draw args;
    args.logits = nothing;
    args.params = &params;
    EXPECT_FALSE(Sample(args).finite);
  }
}

TEST(SampleDefinitionTest, MaskedTokenIsNeverDrawn) {
  std::vector<float> row(64, -kInf);
  row[30] = row[31] = -500.0f;
  for (const SamplingParams& params :
       {SamplingParams{.seed = 1}, SamplingParams{.top_p = 0.99f, .top_k = 10, .min_p = 0.1f},
        SamplingParams{.temperature = 0}, SamplingParams{.temperature = 1e-4f}}) {
    Draw args;
    args.logits = row;
    args.params = &params;
    for (args.position = 0; args.position < 100; ++args.position)
      EXPECT_EQ(Sample(args).token / 2, 15);
  }
}

TEST(SampleDefinitionTest, LogprobsAreOfTheRawLogits) {
  for (int vocab : {3, 100, 5000}) {
    const std::vector<float> row = RandomRow(vocab, vocab, 4.0f);
    double sum = 0;
    for (float logit : row) sum += std::exp(double{logit});
    std::vector<int> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    SamplingParams params{.temperature = 0.5f,
                          .top_k = 20,
                          .presence_penalty = 1,
                          .logit_bias = {{0, 5.0f}},
                          .num_logprobs = 20};
    Draw args;
    args.logits = row;
    args.params = &params;
    const SampleResult result = Sample(args);
    EXPECT_NEAR(result.logprob, row[result.token] - std::log(sum),
                2e-6 * (1 + std::abs(result.logprob)));
    ASSERT_EQ(result.top_logprobs.size(), std::min<size_t>(20, vocab));
    for (size_t rank = 0; rank < result.top_logprobs.size(); ++rank) {
      EXPECT_EQ(result.top_logprobs[rank].token, order[rank]);
      EXPECT_NEAR(result.top_logprobs[rank].logprob, row[order[rank]] - std::log(sum), 1e-5);
    }
    const SampleResult score = ScoreToken(row, result.token, 20);
    EXPECT_EQ(score.logprob, result.logprob);
    EXPECT_EQ(score.top_logprobs.size(), result.top_logprobs.size());
    EXPECT_TRUE(ScoreToken(row, 0, 0).top_logprobs.empty());
  }
}

TEST(SampleDefinitionTest, LogprobsOfHugeLogitsAreStable) {
  std::vector<float> row = {30000.0f, 29999.0f, -30000.0f, -kInf};
  const SampleResult score = ScoreToken(row, 1, 4);
  EXPECT_NEAR(score.logprob, -1.0 - std::log1p(std::exp(-1.0)), 1e-5);
  EXPECT_EQ(ScoreToken(row, 2, 0).logprob, -9999.0f);
  EXPECT_EQ(ScoreToken(row, 3, 0).logprob, -9999.0f);
}

TEST(SampleDefinitionTest, ExtremeParametersStillDraw) {
  const std::vector<float> row = RandomRow(300, 8, 10.0f);
  const auto best = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  std::vector<int32_t> all(300);
  std::iota(all.begin(), all.end(), 0);
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1e-30f}, SamplingParams{.top_p = 1e-30f},
        SamplingParams{.top_k = 1}, SamplingParams{.min_p = 1.0f},
        SamplingParams{.temperature = 1e-4f, .top_p = 1e-6f, .top_k = 100000, .min_p = 1.0f}}) {
    Draw args;
    args.logits = row;
    args.params = &params;
    for (args.position = 0; args.position < 20; ++args.position)
      EXPECT_EQ(Sample(args).token, best);
  }
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1e30f, .top_p = 0.5f},
        SamplingParams{.repetition_penalty = 1e-38f},
        SamplingParams{.repetition_penalty = 1e38f, .logit_bias = {{-1, 1.0f}, {300, 1.0f}}}}) {
    Draw args;
    args.logits = row;
    args.params = &params;
    args.output_tokens = all;
    EXPECT_TRUE(Sample(args).finite);
  }
}

TEST(SampleDefinitionTest, MassIsTheExponentialInFixedPoint) {
  EXPECT_EQ(MassOf(0.0f), uint64_t{1} << kMassBits);
  EXPECT_EQ(MassOf(-0.0f), uint64_t{1} << kMassBits);
  for (float z : {-29.0f, -30.0f, -31.0f, -87.0f, -1e30f, -kInf}) EXPECT_LE(MassOf(z), 1u) << z;
  for (float z : {-30.0f, -31.0f, -87.0f, -100.0f, -1e30f, -kInf}) EXPECT_EQ(MassOf(z), 0u) << z;
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(-31, 0);
  for (int i = 0; i < 100000; ++i) {
    const float z = i % 4 == 0 ? uniform(random) / 1000 : uniform(random);
    const double exact = std::ldexp(std::exp(static_cast<double>(z)), kMassBits);
    ASSERT_NEAR(static_cast<double>(MassOf(z)), exact, exact * 2e-7 + 0.5) << z;
    ASSERT_LE(MassOf(z), uint64_t{1} << kMassBits) << z;
  }
}

TEST(SampleDefinitionTest, TotalMassGivesLogprobsToSixDecimals) {
  std::mt19937 random(3);
  for (float spread : {0.0f, 0.01f, 1.0f, 2.5f, 6.0f, 30.0f}) {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<float> logits(128256);
    for (float& logit : logits) logit = spread * normal(random) + 3;
    long double sum = 0;
    for (float logit : logits) sum += std::exp(static_cast<long double>(logit));
    const SampleTask task = PackScore(77, 5);
    const SampledToken sampled = RunTask(logits, task);
    const double log_sum = sampled.max +
                           std::log(std::ldexp(static_cast<double>(sampled.total), -kMassBits));
    EXPECT_NEAR(log_sum, static_cast<double>(std::log(sum)), 1e-6) << "spread " << spread;
    const auto exact = static_cast<double>(logits[77] - std::log(sum));
    EXPECT_NEAR(ToSampleResult(task, sampled).logprob, exact, 1e-6 + std::abs(exact) * 0x1p-24)
        << "spread " << spread;
  }
}

TEST(SampleDefinitionTest, AdjustmentsNameEachTokenOnceAndRowsFollowEachOther) {
  const std::vector<float> logits(10, 1.0f);
  const std::vector<int32_t> prompt = {1, 1, 2, -4, 10}, output = {2, 3, 3}, banned = {3, 5, 11};
  const SamplingParams params{.presence_penalty = 0.5f,
                              .frequency_penalty = 0.25f,
                              .repetition_penalty = 2.0f,
                              .logit_bias = {{1, 4.0f}, {9, -1.0f}, {10, 1.0f}}};
  DrawContext args;
  args.vocab_size = 10;
  args.params = &params;
  args.prompt_tokens = prompt;
  args.output_tokens = output;
  args.banned_tokens = banned;
  std::vector<LogitAdjustment> adjustments;
  for (int copy = 0; copy < 2; ++copy) {
    const SampleTask row = PackDraw(args, &adjustments);
    EXPECT_EQ(row.first_adjustment, 5 * copy);
    ASSERT_EQ(row.num_adjustments, 5);
    std::vector<float> adjusted = logits;
    for (int i = 0; i < 5; ++i) {
      const LogitAdjustment& a = adjustments[static_cast<size_t>(row.first_adjustment + i)];
      float& logit = adjusted[static_cast<size_t>(a.token)];
      logit = AdjustLogit(logit, a, row);
    }
    EXPECT_EQ(adjusted, (std::vector<float>{1, 2.5f, -0.25f, -kInf, 1, -kInf, 1, 1, 1, 0}));
  }
}

}  // namespace
}  // namespace diffserve
