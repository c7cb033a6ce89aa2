// Sampling on the device against sampling on the CPU, bit for bit: on a GPU, or the kernels' own
// source on the CPU shim.
#include "kernels/ops/sample_cuda.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/cuda/device_array.h"

namespace diffserve {
namespace {

using testing::DeviceArray;
using testing::IsOk;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kPoison = -77;

// One row's work, with all that it points to.
struct RowCase {
  bool is_scored = false;
  int32_t scored_token = 0;
  int num_top = 0;  // of a scored row
  SamplingParams params = {};
  std::vector<float> logits = {};
  std::vector<int32_t> prompt = {}, output = {}, banned = {};
  uint64_t position = 0;

  SampleArgs Args() const {
    SampleArgs args;
    args.logits = logits;
    args.params = &params;
    args.position = position;
    args.prompt_tokens = prompt;
    args.output_tokens = output;
    args.banned_tokens = banned;
    return args;
  }
  SampleResult OnCpu() const {
    return is_scored ? ScoreToken(logits, scored_token, num_top) : Sample(Args());
  }
  SampleRow Pack(std::vector<LogitAdjustment>* adjustments) const {
    return is_scored ? PackScoreRow(scored_token, num_top) : PackSampleRow(Args(), adjustments);
  }
};

std::vector<float> RandomLogits(int vocab, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, random() % 4 == 0 ? 8.0f : 2.0f);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& logit : logits) logit = normal(random);
  const auto any = [&]() -> float& { return logits[random() % logits.size()]; };
  switch (random() % 8) {
    case 0:  // ties everywhere
      for (float& logit : logits) logit = std::round(logit);
      break;
    case 1:  // all equal, but for a few
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

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

void ExpectSame(const SampleResult& device, const SampleResult& cpu, const std::string& what) {
  EXPECT_EQ(device.finite, cpu.finite) << what;
  if (!cpu.finite) return;
  EXPECT_EQ(device.token, cpu.token) << what;
  EXPECT_EQ(Bits(device.logprob), Bits(cpu.logprob))
      << what << ": " << device.logprob << " instead of " << cpu.logprob;
  ASSERT_EQ(device.top_logprobs.size(), cpu.top_logprobs.size()) << what;
  for (size_t i = 0; i < cpu.top_logprobs.size(); ++i) {
    EXPECT_EQ(device.top_logprobs[i].token, cpu.top_logprobs[i].token)
        << what << ", alternative " << i;
    EXPECT_EQ(Bits(device.top_logprobs[i].logprob), Bits(cpu.top_logprobs[i].logprob))
        << what << ", alternative " << i;
  }
}

class SampleCudaTest : public testing::OnDeviceTest {
 protected:
  // The rows in one launch, between rows of nothing; `shift` elements put the logits off their
  // alignment.
  std::vector<SampleResult> OnDevice(const std::vector<RowCase>& cases, size_t shift = 0) {
    const size_t vocab = cases.front().logits.size();
    std::vector<float> logits;
    std::vector<SampleRow> rows;
    std::vector<LogitAdjustment> adjustments;
    const auto add_nothing = [&] {
      rows.push_back({});
      logits.resize(logits.size() + vocab, std::numeric_limits<float>::quiet_NaN());
    };
    add_nothing();
    for (const RowCase& row : cases) {
      rows.push_back(row.Pack(&adjustments));
      logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    }
    add_nothing();
    SampledRow poison;
    std::fill_n(reinterpret_cast<int32_t*>(&poison), sizeof(poison) / sizeof(int32_t), kPoison);

    const DeviceArray<float> device_logits(logits, *stream_, shift);
    const DeviceArray<SampleRow> device_rows(rows, *stream_);
    const DeviceArray<LogitAdjustment> device_adjustments(adjustments, *stream_);
    const DeviceArray<SampledRow> device_sampled(std::vector<SampledRow>(rows.size(), poison),
                                                 *stream_);
    EXPECT_TRUE(IsOk(cuda::SampleRows({.logits = device_logits.data(),
                                       .vocab_size = static_cast<int>(vocab),
                                       .num_rows = static_cast<int>(rows.size()),
                                       .rows = device_rows.data(),
                                       .adjustments = device_adjustments.data(),
                                       .sampled = device_sampled.data()},
                                      stream_->handle())));
    const std::vector<SampledRow> sampled = device_sampled.Read(*stream_);
    for (const SampledRow* nothing : {&sampled.front(), &sampled.back()}) {
      EXPECT_EQ(std::memcmp(nothing, &poison, sizeof(poison)), 0)
          << "the result of a row of nothing was written";
    }
    std::vector<SampleResult> results;
    for (size_t i = 0; i < cases.size(); ++i)
      results.push_back(ToSampleResult(rows[i + 1], sampled[i + 1]));
    return results;
  }

  void ExpectLikeCpu(const std::vector<RowCase>& cases, size_t shift = 0) {
    const std::vector<SampleResult> results = OnDevice(cases, shift);
    for (size_t i = 0; i < cases.size(); ++i) {
      ExpectSame(
          results[i], cases[i].OnCpu(),
          "vocabulary " + std::to_string(cases[i].logits.size()) + ", row " + std::to_string(i));
    }
  }
};

TEST_F(SampleCudaTest, RandomRowsHaveTheBitsOfTheCpu) {
  std::mt19937 random(1);
  for (int vocab : {1, 2, 3, 4, 31, 32, 33, 100, 255, 256, 257, 1769, 2048}) {
    for (size_t shift = 0; shift < 2; ++shift) {
      std::vector<RowCase> cases;
      for (int i = 0; i < 10; ++i) cases.push_back(RandomCase(vocab, random));
      ExpectLikeCpu(cases, shift);
    }
  }
}

TEST_F(SampleCudaTest, RowsOfLargerVocabulariesHaveTheBitsOfTheCpu) {
  std::mt19937 random(2);
  for (int vocab : {2049, 5000, 128256}) {
    std::vector<RowCase> cases;
    for (int i = 0; i < (testing::kHasGpu ? 200 : 6); ++i)
      cases.push_back(RandomCase(vocab, random));
    ExpectLikeCpu(cases, 3);
  }
}

// Every combination of filters on rows where their places fall among ties.
TEST_F(SampleCudaTest, FiltersThatEndAmongTiesHaveTheBitsOfTheCpu) {
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
  ExpectLikeCpu(cases);
}

// Many tokens of nearly one mass: one that is wrongly kept or not moves most draws.
TEST_F(SampleCudaTest, FiltersThatEndWithinAPartOfTheHistogramHaveTheBitsOfTheCpu) {
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
  ExpectLikeCpu(cases);
}

// The kernel looks for alternatives from the largest logits of its warps down, and a warp has 128
// neighbours.
TEST_F(SampleCudaTest, AlternativesOfWhichEachWarpHasOneAreAllFound) {
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
  ExpectLikeCpu(cases);
}

TEST_F(SampleCudaTest, EveryScheduleOfTheThreadsGivesTheSameBits) {
  std::mt19937 random(4);
  std::vector<RowCase> cases;
  while (cases.size() < 4) {
    RowCase row = RandomCase(300, random);
    if (row.is_scored || !row.OnCpu().finite) continue;
    row.params = {.temperature = 0.9f,
                  .top_p = 0.8f,
                  .top_k = 100,
                  .presence_penalty = 0.5f,
                  .num_logprobs = 5};
    row.output = {1, 2, 3};
    cases.push_back(std::move(row));
  }
  OnEverySchedule([&] { ExpectLikeCpu(cases); });
}

TEST_F(SampleCudaTest, TheLogprobOfAnAdjustedTokenIsThatOfItsLogitAsGiven) {
  RowCase row{.logits = std::vector<float>(50, 0.0f)};
  row.params = {.temperature = 0, .logit_bias = {{7, 30.0f}}, .num_logprobs = 1};
  const SampleResult result = OnDevice({row})[0];
  EXPECT_EQ(result.token, 7);
  EXPECT_NEAR(result.logprob, -std::log(50.0), 1e-6);
  EXPECT_EQ(result.top_logprobs[0].token, 0);
}

TEST_F(SampleCudaTest, NoRowsQueueNothing) {
  EXPECT_TRUE(IsOk(cuda::SampleRows({.vocab_size = 8, .num_rows = 0}, stream_->handle())));
  EXPECT_TRUE(IsOk(stream_->Synchronize()));
}

}  // namespace
}  // namespace diffserve
