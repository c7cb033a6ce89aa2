// SPDX-License-Identifier: Apache-2.0
// Sampling on every backend against the reference, bitwise.
#include "kernels/ops/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/ops/sample_arithmetic.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/op_backends.h"

namespace diffserve {
namespace {

using testing::SampleBackend;
using uint128 = unsigned __int128;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kPoison = -77;

// One row's work, with everything that it points to.
struct RowCase {
  bool is_scored = false;
  int32_t scored_token = 0;
  int num_top = 0;  // for a scored row
  SamplingParams params = {};
  std::vector<float> logits = {};
  std::vector<int32_t> prompt = {}, output = {}, banned = {};
  uint64_t position = 0;
  std::vector<uint32_t> mask = {};  // empty: none

  int vocab() const { return static_cast<int>(logits.size()); }
  SampleTask Pack(std::vector<LogitAdjustment>* adjustments, std::vector<uint32_t>* masks) const {
    SampleTask task = is_scored ? PackScore(scored_token, num_top)
                                : PackDraw({.params = &params,
                                            .vocab_size = vocab(),
                                            .position = position,
                                            .prompt_tokens = prompt,
                                            .output_tokens = output,
                                            .banned_tokens = banned},
                                           adjustments);
    if (mask.empty()) return task;
    task.mask = static_cast<int32_t>(masks->size() / MaskWords(vocab()));
    masks->insert(masks->end(), mask.begin(), mask.end());
    return task;
  }
};

// A mask with one token in `one_of`; bits beyond the vocabulary are set.
std::vector<uint32_t> RandomMask(int vocab, unsigned one_of, std::mt19937& random) {
  std::vector<uint32_t> mask(MaskWords(vocab), ~uint32_t{0});
  for (int token = 0; token < vocab; ++token) {
    if (random() % one_of != 0)
      mask[static_cast<size_t>(token / 32)] &= ~(uint32_t{1} << (token % 32));
  }
  return mask;
}

std::vector<float> RandomLogits(int vocab, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, random() % 4 == 0 ? 8.0f : 2.0f);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& logit : logits) logit = normal(random);
  const auto any = [&]() -> float& { return logits[random() % logits.size()]; };
  switch (random() % 8) {
    case 0:  // ties everywhere
      for (float& logit : logits) logit = std::round(logit);
      break;
    case 1:  // all equal, except a few
      std::fill(logits.begin(), logits.end(), normal(random));
      for (int i = 0; i < 3; ++i) any() += normal(random);
      break;
    case 2:  // a grammar's mask
      for (float& logit : logits) logit = random() % 3 == 0 ? logit : -kInfinity;
      any() = 1.0f;
      break;
    case 3:  // both zeros are the largest
      for (float& logit : logits) logit = -std::abs(logit);
      any() = 0.0f;
      any() = -0.0f;
      break;
    case 4:  // one token has nearly all
      any() = 60.0f;
      break;
    case 5:  // far apart
      for (float& logit : logits) logit *= 1e37f;
      break;
    default:
      break;
  }
  return logits;
}

std::vector<int32_t> RandomTokens(int vocab, size_t count, std::mt19937& random) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(random() % static_cast<unsigned>(vocab + 1)) -
            (random() % 16 == 0);
  return tokens;
}

RowCase RandomCase(int vocab, std::mt19937& random) {
  RowCase row{.logits = RandomLogits(vocab, random), .position = random()};
  const auto chance = [&](unsigned one_of) { return random() % one_of == 0; };
  const auto share = [&] { return static_cast<float>(random() % 1000 + 1) / 1001.0f; };
  SamplingParams& params = row.params;
  params.seed = random();
  if (chance(12))
    row.logits[random() % row.logits.size()] = chance(2) ? kInfinity
                                                         : std::numeric_limits<float>::quiet_NaN();
  if (chance(24)) std::fill(row.logits.begin(), row.logits.end(), -kInfinity);
  constexpr unsigned kOneOf[] = {1, 2, 20, 1000};
  if (chance(3)) row.mask = RandomMask(vocab, kOneOf[random() % std::size(kOneOf)], random);
  if (chance(5)) {
    row.is_scored = true;
    row.scored_token = static_cast<int32_t>(random() % row.logits.size());
    row.num_top = static_cast<int>(random() % 21);
    return row;
  }
  constexpr float kTemperatures[] = {0.0f, 1e-4f, 0.3f, 1.0f, 1.7f, 100.0f, 1e30f};
  params.temperature = kTemperatures[random() % std::size(kTemperatures)];
  if (chance(2)) params.top_p = chance(4) ? 0.9999999f : share();
  if (chance(2))
    params.top_k = static_cast<int>(random() % static_cast<unsigned>(chance(2) ? 60 : vocab + 5));
  if (chance(3)) params.min_p = chance(4) ? 1.0f : share() * share();
  if (chance(3)) params.num_logprobs = static_cast<int>(random() % 21);
  if (chance(2)) {
    row.output = RandomTokens(vocab, random() % 40, random);
    row.prompt = RandomTokens(vocab, random() % 40, random);
    if (chance(2)) params.frequency_penalty = share() * 4 - 2;
    if (chance(2)) params.presence_penalty = share() * 4 - 2;
    if (chance(2)) params.repetition_penalty = chance(8) ? 1e-38f : share() * 2;
    if (chance(2)) row.banned = RandomTokens(vocab, random() % 5, random);
    for (int32_t token : RandomTokens(vocab, random() % 8, random))
      params.logit_bias.emplace_back(token, share() * 200 - 100);
  }
  return row;
}

void ExpectSame(const SampleTask& task, const SampledToken& sampled, const SampledToken& expected,
                const std::string& what) {
  EXPECT_EQ(sampled.finite, expected.finite) << what;
  if (expected.finite == 0) return;
  EXPECT_EQ(sampled.token, expected.token) << what;
  if (task.num_top < 0) return;
  EXPECT_EQ(sampled.max, expected.max) << what;  // either zero may be the largest
  EXPECT_EQ(std::bit_cast<uint32_t>(sampled.logit), std::bit_cast<uint32_t>(expected.logit))
      << what;
  EXPECT_EQ(sampled.total, expected.total) << what;
  for (int i = 0; i < task.num_top && expected.top_tokens[i] >= 0; ++i) {
    EXPECT_EQ(sampled.top_tokens[i], expected.top_tokens[i]) << what << ", alternative " << i;
    EXPECT_EQ(std::bit_cast<uint32_t>(sampled.top_logits[i]),
              std::bit_cast<uint32_t>(expected.top_logits[i]))
        << what << ", alternative " << i;
  }
  const int end = task.num_top;
  EXPECT_TRUE(end == kTopLogprobsMax || sampled.top_tokens[end] < 0) << what;
}

// The smallest uniform numbers that lead to each of the row's tokens except the first, without
// filters; in a large vocabulary only to a few tokens.
std::vector<uint64_t> EdgesOf(const RowCase& row) {
  const float max = *std::ranges::max_element(row.logits);
  std::vector<uint64_t> before = {0};
  for (float logit : row.logits)
    before.push_back(before.back() + MassOf((logit - max) * (1.0f / row.params.temperature)));
  const uint64_t total = before.back();
  std::vector<uint64_t> edges;
  for (size_t i = 1; i + 1 < before.size(); i += 1 + before.size() / 40) {
    if (before[i] > 0 && before[i] < total)
      edges.push_back(static_cast<uint64_t>(((uint128{before[i]} << 64) + (total - 1)) / total));
  }
  return edges;
}

class SampleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backends_.empty()) GTEST_SKIP() << "there is no device";
  }

  // The rows in one call, between rows of kNothing.
  static void ExpectLikeReference(const SampleBackend& backend, const std::vector<RowCase>& cases,
                                  const std::vector<uint64_t>& uniforms = {}) {
    const size_t vocab = cases.front().logits.size();
    std::vector<float> logits(vocab, std::numeric_limits<float>::quiet_NaN());
    std::vector<SampleTask> tasks(1);
    std::vector<LogitAdjustment> adjustments;
    std::vector<uint32_t> masks;
    for (const RowCase& row : cases) {
      tasks.push_back(row.Pack(&adjustments, &masks));
      if (!uniforms.empty()) tasks.back().uniform = uniforms[tasks.size() - 2];
      logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    }
    tasks.emplace_back();
    logits.resize(logits.size() + vocab, std::numeric_limits<float>::quiet_NaN());
    SampledToken poison;
    std::fill_n(reinterpret_cast<int32_t*>(&poison), sizeof(poison) / sizeof(int32_t), kPoison);
    std::vector<SampledToken> expected(tasks.size(), poison);
    const SampleArgs args = {.logits = logits.data(),
                             .vocab_size = static_cast<int>(vocab),
                             .num_rows = static_cast<int>(tasks.size()),
                             .tasks = tasks.data(),
                             .adjustments = adjustments.data(),
                             .masks = masks.data(),
                             .sampled = expected.data()};
    const std::vector<SampledToken> sampled = backend.run(args);
    SampleRef(args);
    ASSERT_EQ(sampled.size(), expected.size());
    for (size_t i = 0; i < tasks.size(); ++i) {
      const std::string what = backend.name + ", vocabulary " + std::to_string(vocab) + ", row " +
                               std::to_string(i);
      if (tasks[i].kind == SampleKind::kNothing) {
        EXPECT_EQ(std::memcmp(&sampled[i], &poison, sizeof(poison)), 0)
            << what << ": the result of a row of nothing was written";
      } else {
        ExpectSame(tasks[i], sampled[i], expected[i], what);
      }
    }
  }

  void ExpectLikeReference(const std::vector<RowCase>& cases) {
    for (const SampleBackend& backend : backends_) ExpectLikeReference(backend, cases);
  }

  const std::vector<SampleBackend> backends_ = testing::SampleBackends();
};

TEST_F(SampleTest, RandomRowsEqualTheReference) {
  std::mt19937 random(1);
  for (int vocab : {1, 2, 3, 4, 31, 32, 33, 100, 255, 256, 257, 1769, 2048}) {
    std::vector<RowCase> cases;
    for (int i = 0; i < 20; ++i) cases.push_back(RandomCase(vocab, random));
    ExpectLikeReference(cases);
  }
}

TEST_F(SampleTest, RowsOfLargerVocabulariesEqualTheReference) {
  std::mt19937 random(2);
  for (int vocab : {2049, 5000, 128256}) {
    std::vector<RowCase> cases;
    for (int i = 0; i < (backends_[0].is_slow ? 6 : 60); ++i)
      cases.push_back(RandomCase(vocab, random));
    ExpectLikeReference(cases);
  }
}

// Every combination of filters on rows where the cutoffs fall among ties.
TEST_F(SampleTest, FiltersThatEndAmongTiesEqualTheReference) {
  std::mt19937 random(3);
  std::vector<RowCase> cases;
  for (int i = 0; i < 32; ++i) {
    RowCase row{.logits = std::vector<float>(300), .position = random()};
    for (float& logit : row.logits)
      logit = -static_cast<float>(random() % 4) * (i % 2 == 0 ? 0.01f : 3.0f);
    row.params.seed = static_cast<uint64_t>(i);
    if (i / 2 % 2 == 1) row.params.top_k = 1 + static_cast<int>(random() % 250);
    if (i / 4 % 2 == 1) row.params.top_p = static_cast<float>(1 + random() % 99) / 100.0f;
    if (i / 8 % 2 == 1) row.params.min_p = 0.04f;
    row.params.num_logprobs = static_cast<int>(random() % 21);
    cases.push_back(std::move(row));
  }
  ExpectLikeReference(cases);
}

// Many tokens of nearly equal mass: one that is wrongly kept or dropped changes most draws.
TEST_F(SampleTest, FiltersThatEndWithinAPartOfTheHistogramEqualTheReference) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<RowCase> cases;
  for (int i = 0; i < 48; ++i) {
    RowCase row{.logits = std::vector<float>(500), .position = random()};
    for (float& logit : row.logits) logit = normal(random);
    row.params = {.temperature = i % 2 == 0 ? 100.0f : 3.0f, .seed = static_cast<uint64_t>(i)};
    if (i % 4 < 2) {
      row.params.top_p = static_cast<float>(1 + random() % 99) / 100.0f;
    } else {
      row.params.top_p = 0.9999f;  // ends at top_k's last token
      row.params.top_k = 2 + static_cast<int>(random() % 300);
    }
    cases.push_back(std::move(row));
  }
  ExpectLikeReference(cases);
}

// The kernel searches alternatives from the largest logits of its warps down, and a warp has 128
// neighbours.
TEST_F(SampleTest, AlternativesSpreadOverAllWarpsAreFound) {
  std::vector<RowCase> cases;
  for (int num_top : {1, 2, 11, 20}) {
    RowCase row{.is_scored = true,
                .scored_token = 9,
                .num_top = num_top,
                .logits = std::vector<float>(4096, -1.0f)};
    for (size_t warp = 0; warp < 32; ++warp)
      row.logits[128 * warp + warp] = static_cast<float>(warp * 7 % 32);
    cases.push_back(std::move(row));
  }
  ExpectLikeReference(cases);
}

// Every vocabulary size around a mask word and a thread block, and from one token to all allowed.
TEST_F(SampleTest, RowsWithMasksEqualTheReference) {
  std::mt19937 random(7);
  for (int vocab : {1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1769, 5000}) {
    std::vector<RowCase> cases;
    for (unsigned one_of : {1u, 2u, 7u, 100u, 100000u}) {
      for (const float temperature : {0.0f, 1.0f}) {
        RowCase row = {.params = {.temperature = temperature},
                       .logits = RandomLogits(vocab, random),
                       .position = random(),
                       .mask = RandomMask(vocab, one_of, random)};
        row.params.num_logprobs = static_cast<int>(random() % 21);
        if (one_of == 2) row.params.top_k = 3;
        if (one_of == 7) row.params.top_p = 0.7f;
        if (one_of < 7) row.banned = RandomTokens(vocab, 3, random);
        if (one_of > 7)
          row.params.logit_bias = {
              {static_cast<int32_t>(random() % static_cast<unsigned>(vocab)), 100.0f}};
        cases.push_back(std::move(row));
      }
    }
    ExpectLikeReference(cases);
  }
}

// The largest logits are masked, so the reported ones do not help the draw.
TEST_F(SampleTest, MaskedRowDrawsAmongItsTokensAndReportsTheModelsLogprobs) {
  constexpr int kVocab = 300;
  for (const SampleBackend& backend : backends_) {
    for (int allowed : {0, 31, 32, 250, 299}) {
      std::vector<float> logits(kVocab);
      for (size_t i = 0; i < logits.size(); ++i) logits[i] = -static_cast<float>(i);
      std::vector<uint32_t> masks(MaskWords(kVocab), 0);
      masks[static_cast<size_t>(allowed / 32)] = uint32_t{1} << (allowed % 32);
      const RowCase row = {.params = {.temperature = 0.7f, .top_k = 2, .num_logprobs = 3},
                           .logits = logits,
                           .mask = masks};
      std::vector<LogitAdjustment> adjustments;
      std::vector<uint32_t> packed;
      const SampleTask task = row.Pack(&adjustments, &packed);
      SampledToken sampled;
      const SampledToken of_row = backend.run({.logits = logits.data(),
                                               .vocab_size = kVocab,
                                               .num_rows = 1,
                                               .tasks = &task,
                                               .adjustments = adjustments.data(),
                                               .masks = packed.data(),
                                               .sampled = &sampled})[0];
      EXPECT_EQ(of_row.finite, 1);
      EXPECT_EQ(of_row.token, allowed) << backend.name;
      EXPECT_EQ(of_row.logit, -static_cast<float>(allowed));
      EXPECT_EQ(of_row.max, 0.0f);
      EXPECT_EQ(of_row.top_tokens[0], 0);
      EXPECT_EQ(of_row.top_tokens[2], 2);
    }
  }
}

TEST_F(SampleTest, RowWithEveryTokenMaskedIsNotFinite) {
  for (const SampleBackend& backend : backends_) {
    RowCase nothing = {.logits = std::vector<float>(70, 1.0f), .mask = std::vector<uint32_t>(3, 0)};
    nothing.mask[2] = ~uint32_t{0} << 6;  // beyond the vocabulary
    RowCase banned = nothing;
    banned.mask[1] = 1;
    banned.banned = {32};
    for (const RowCase& row : {nothing, banned}) {
      std::vector<LogitAdjustment> adjustments;
      std::vector<uint32_t> masks;
      const SampleTask task = row.Pack(&adjustments, &masks);
      std::vector<float> logits = row.logits;
      SampledToken sampled;
      const auto of_row = backend.run({.logits = logits.data(),
                                       .vocab_size = row.vocab(),
                                       .num_rows = 1,
                                       .tasks = &task,
                                       .adjustments = adjustments.data(),
                                       .masks = masks.data(),
                                       .sampled = &sampled})[0];
      EXPECT_EQ(of_row.finite, 0) << backend.name;
    }
  }
}

TEST_F(SampleTest, EveryScheduleOfTheThreadsGivesTheSameBits) {
  std::mt19937 random(4);
  std::vector<RowCase> cases;
  for (int i = 0; i < 4; ++i) {
    RowCase row = {.params = {.temperature = 0.9f,
                              .top_p = 0.8f,
                              .top_k = 100,
                              .presence_penalty = 0.5f,
                              .num_logprobs = 5},
                   .logits = RandomLogits(300, random),
                   .output = {1, 2, 3},
                   .position = random()};
    if (i % 2 == 0) row.mask = RandomMask(300, 3, random);
    cases.push_back(std::move(row));
  }
  for (const SampleBackend& backend : backends_)
    backend.on_every_schedule([&] { ExpectLikeReference(backend, cases); });
}

// A mass that is one too small or too large changes the draw at the number where a token begins.
TEST_F(SampleTest, BoundariesBetweenTokensEqualTheReference) {
  std::mt19937 random(6);
  for (int vocab : {2, 17, 255, 257, 600}) {
    for (int temperature : {1, 30}) {
      RowCase row = {.params = {.temperature = static_cast<float>(temperature)},
                     .logits = std::vector<float>(static_cast<size_t>(vocab))};
      std::normal_distribution<float> normal(0.0f, 2.0f);
      for (float& logit : row.logits) logit = normal(random);
      std::vector<uint64_t> uniforms = {0, ~uint64_t{0}};
      for (uint64_t edge : EdgesOf(row)) {
        uniforms.push_back(edge);
        uniforms.push_back(edge - 1);
      }
      const std::vector<RowCase> cases(uniforms.size(), row);  // once with each number
      for (const SampleBackend& backend : backends_) ExpectLikeReference(backend, cases, uniforms);
    }
  }
}

}  // namespace
}  // namespace diffserve
