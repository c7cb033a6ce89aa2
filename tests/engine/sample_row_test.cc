// The integer definitions of sample_arithmetic.h: the CPU's sampling against full sorts and 128-bit
// arithmetic, for every place that a uniform number can hit.
#include "kernels/ops/sample_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/ops/sample_arithmetic.h"

namespace diffserve {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
using uint128 = unsigned __int128;

// ceil(share * mass), exactly: a float is an integer times a power of two.
uint64_t CeilOfShare(float share, uint64_t mass) {
  int exponent = 0;
  const auto mantissa = static_cast<uint64_t>(std::ldexp(std::frexp(share, &exponent), 24));
  const int shift = 24 - exponent;  // share = mantissa / 2^shift
  if (shift >= 127) return 1;
  const uint128 product = uint128{mantissa} * mass;
  return static_cast<uint64_t>((product + ((uint128{1} << shift) - 1)) >> shift);
}

// The mass of each token that the filters keep, 0 of the others.
std::vector<uint64_t> KeptMasses(const std::vector<float>& logits, const SamplingParams& params) {
  const size_t vocab = logits.size();
  const float max = *std::max_element(logits.begin(), logits.end());
  std::vector<float> z(vocab);
  for (size_t i = 0; i < vocab; ++i) z[i] = (logits[i] - max) * (1.0f / params.temperature);
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return z[a] > z[b]; });
  if (params.top_k > 0) order.resize(std::min(vocab, static_cast<size_t>(params.top_k)));
  std::vector<uint64_t> masses(vocab, 0);
  uint64_t total = 0;
  for (size_t i : order) total += masses[i] = MassOf(z[i]);
  if (params.top_p < 1) {
    const uint64_t needed = std::max<uint64_t>(1, CeilOfShare(params.top_p, total));
    uint64_t reached = 0;
    for (size_t i : order) {
      if (reached >= needed) masses[i] = 0;
      reached += masses[i];
    }
  }
  for (size_t i = 0; i < vocab; ++i) {
    if (params.min_p > 0 && z[i] < std::log(params.min_p)) masses[i] = 0;
  }
  return masses;
}

int32_t ReferenceDraw(const std::vector<uint64_t>& masses, uint64_t uniform) {
  const uint64_t total = std::accumulate(masses.begin(), masses.end(), uint64_t{0});
  auto target = static_cast<uint64_t>((uint128{uniform} * total) >> 64);
  size_t token = 0;
  while (target >= masses[token]) target -= masses[token++];
  return static_cast<int32_t>(token);
}

// The least uniform number that leads to a cumulative mass of `mass`.
uint64_t UniformAt(uint64_t mass, uint64_t total) {
  return static_cast<uint64_t>(((uint128{mass} << 64) + (total - 1)) / total);
}

void ExpectLikeReference(const std::vector<float>& logits, const SamplingParams& params,
                         std::mt19937_64& random) {
  const std::vector<uint64_t> masses = KeptMasses(logits, params);
  const uint64_t total = std::accumulate(masses.begin(), masses.end(), uint64_t{0});
  std::vector<uint64_t> uniforms = {0, ~uint64_t{0}, random(), random()};
  uint64_t before = 0;
  for (size_t i = 0; i < masses.size(); ++i) {  // the edges of a few tokens, of all in a small
                                                // vocabulary
    if (before > 0 && masses[i] > 0 &&
        (masses.size() < 300 || random() % (masses.size() / 8) == 0)) {
      uniforms.push_back(UniformAt(before, total));
      uniforms.push_back(UniformAt(before, total) - 1);
    }
    before += masses[i];
  }
  SampleArgs args;
  args.logits = logits;
  args.params = &params;
  std::vector<LogitAdjustment> adjustments;
  SampleRow row = PackSampleRow(args, &adjustments);
  ASSERT_TRUE(adjustments.empty());
  ASSERT_EQ(row.kind, params.top_k == 1 ? SampleKind::kGreedy : SampleKind::kDraw);
  for (uint64_t uniform : uniforms) {
    row.uniform = uniform;
    const SampledRow sampled = cpu::SampleRow(logits, row, {});
    ASSERT_TRUE(sampled.finite);
    ASSERT_EQ(sampled.token, ReferenceDraw(masses, uniform))
        << "vocabulary " << logits.size() << ", uniform " << uniform << ", top_k " << params.top_k
        << ", top_p " << params.top_p << ", min_p " << params.min_p << ", temperature "
        << params.temperature;
  }
}

std::vector<float> LogitsOf(size_t vocab, int kind, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  if (kind == 1) std::fill(logits.begin(), logits.end(), 0.25f);
  for (float& logit : logits) {
    if (kind == 2) logit = std::round(logit);  // ties
    if (kind == 3 && random() % 2 == 0) logit = -kInf;
    if (kind == 4) logit *= 20;  // nearly all have no mass
  }
  if (kind == 3) logits[random() % vocab] = 0.5f;
  return logits;
}

TEST(SampleRowTest, EveryDrawIsThatOfTheFullSort) {
  std::mt19937_64 random(1);
  constexpr float kTemperatures[] = {0.2f, 1.0f, 1.3f, 50.0f};
  for (size_t vocab : {1, 2, 3, 17, 255, 256, 257, 1769, 50000}) {
    for (int kind = 0; kind < 5; ++kind) {
      for (int filters = 0; filters < 8; ++filters) {
        const std::vector<float> logits = LogitsOf(vocab, kind, random);
        SamplingParams params{.temperature = kTemperatures[random() % 4]};
        if (filters & 1)
          params.top_k = 1 + static_cast<int>(
                                 random() % std::min<size_t>(vocab + 2, random() % 2 ? 8 : 100000));
        if (filters & 2)
          params.top_p = random() % 8 == 0 ? 0x1.fffffep-1f
                                           : 0.001f * static_cast<float>(1 + random() % 999);
        if (filters & 4) params.min_p = 0.01f * static_cast<float>(1 + random() % 100);
        ExpectLikeReference(logits, params, random);
      }
    }
  }
}

TEST(SampleRowTest, AMassIsTheExponentialInFixedPoint) {
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

TEST(SampleRowTest, AShareThatIsReachedExactlyTakesNoFurtherToken) {
  std::mt19937_64 random(4);
  for (size_t vocab : {4, 8, 256, 1024}) {
    const std::vector<float> logits(vocab, -2.0f);
    for (float top_p : {0.25f, 0.5f, 0.75f}) {
      ExpectLikeReference(logits, {.top_p = top_p}, random);
      ExpectLikeReference(logits, {.top_p = top_p, .top_k = 4}, random);
    }
  }
}

// Of the result before it is rounded to float.
TEST(SampleRowTest, TheTotalMassGivesLogprobsToASixthDecimal) {
  std::mt19937 random(3);
  for (float spread : {0.0f, 0.01f, 1.0f, 2.5f, 6.0f, 30.0f}) {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<float> logits(128256);
    for (float& logit : logits) logit = spread * normal(random) + 3;
    long double sum = 0;
    for (float logit : logits) sum += std::exp(static_cast<long double>(logit));
    SampleRow row = PackScoreRow(77, 5);
    const SampledRow sampled = cpu::SampleRow(logits, row, {});
    const double log_sum = sampled.max +
                           std::log(std::ldexp(static_cast<double>(sampled.total), -kMassBits));
    EXPECT_NEAR(log_sum, static_cast<double>(std::log(sum)), 1e-6) << "spread " << spread;
    const auto exact = static_cast<double>(logits[77] - std::log(sum));
    EXPECT_NEAR(ToSampleResult(row, sampled).logprob, exact, 1e-6 + std::abs(exact) * 0x1p-24)
        << "spread " << spread;
  }
}

TEST(SampleRowTest, AdjustmentsNameEachTokenOnceAndRowsFollowEachOther) {
  const std::vector<float> logits(10, 1.0f);
  const std::vector<int32_t> prompt = {1, 1, 2, -4, 10}, output = {2, 3, 3}, banned = {3, 5, 11};
  const SamplingParams params{.presence_penalty = 0.5f,
                              .frequency_penalty = 0.25f,
                              .repetition_penalty = 2.0f,
                              .logit_bias = {{1, 4.0f}, {9, -1.0f}, {10, 1.0f}}};
  SampleArgs args;
  args.logits = logits;
  args.params = &params;
  args.prompt_tokens = prompt;
  args.output_tokens = output;
  args.banned_tokens = banned;
  std::vector<LogitAdjustment> adjustments;
  for (int copy = 0; copy < 2; ++copy) {
    const SampleRow row = PackSampleRow(args, &adjustments);
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
