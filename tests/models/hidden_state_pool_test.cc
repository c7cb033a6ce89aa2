// SPDX-License-Identifier: Apache-2.0
// Pools of small models of every family, against the norm and the mean of the same residual stream
// in double precision. They are bitwise equal for any division of the work into steps.
#include "models/diagnostics/hidden_state_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "models/diagnostics/batch_observer.h"
#include "models/model.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

using Kind = HiddenStatePool::Kind;
using ::testing::HasSubstr;

constexpr int kPooledTokens = 70;

std::shared_ptr<HiddenStatePool> MakePool(Kind kind, int hidden_size, int dimensions) {
  auto pool = std::make_shared<HiddenStatePool>(kind, hidden_size, dimensions);
  pool->Reserve(1);
  return pool;
}

std::vector<float> ValuesOf(const HiddenStatePool& pool) {
  EXPECT_TRUE(pool.is_complete() && pool.status().ok()) << pool.status().message();
  return {pool.values().begin(), pool.values().end()};
}

double LengthOf(const std::vector<float>& values) {
  double squares = 0;
  for (const float x : values) squares += double{x} * x;
  return std::sqrt(squares);
}

TEST(HiddenStatePoolTest, MeanOfAllStatesHasUnitLength) {
  const auto pool = MakePool(Kind::kMean, 2, 2);
  pool->OnStates(0, 3, std::vector<float>{1, 0, 2, 1});
  EXPECT_FALSE(pool->is_complete());
  pool->OnStates(2, 3, std::vector<float>{0, 3});
  EXPECT_EQ(ValuesOf(*pool), (std::vector<float>{0.6f, 0.8f}));  // from (3, 4)
}

TEST(HiddenStatePoolTest, LastPoolReadsOnlyTheLastState) {
  const auto pool = MakePool(Kind::kLast, 2, 2);
  EXPECT_EQ(pool->FirstState(0, 5, 8), 5);
  EXPECT_EQ(pool->FirstState(5, 8, 8), 7);
  pool->OnStates(7, 8, std::vector<float>{0, -2});
  EXPECT_EQ(ValuesOf(*pool), (std::vector<float>{0, -1}));
}

TEST(HiddenStatePoolTest, FewerDimensionsAreTheFirstOnesAtUnitLength) {
  const auto pool = MakePool(Kind::kLast, 3, 2);
  pool->OnStates(0, 1, std::vector<float>{3, 4, 12});
  EXPECT_EQ(ValuesOf(*pool), (std::vector<float>{0.6f, 0.8f}));
}

TEST(HiddenStatePoolTest, StateOfEachTokenIsKeptAsItIsOrAtUnitLength) {
  for (const Kind kind : {Kind::kEach, Kind::kEachAtUnitLength}) {
    HiddenStatePool pool(kind, 2, 2);
    pool.Reserve(3);
    EXPECT_EQ(pool.first_position(), 0);
    EXPECT_EQ(pool.bytes(3), sizeof(pool) + 6 * sizeof(float));
    pool.OnStates(0, 3, std::vector<float>{3, 4});
    EXPECT_EQ(pool.FirstState(0, 3, 3), 1) << "a recomputed token is not kept again";
    pool.OnStates(1, 3, std::vector<float>{0, -2, 5, 12});
    EXPECT_EQ(ValuesOf(pool), kind == Kind::kEach
                                  ? (std::vector<float>{3, 4, 0, -2, 5, 12})
                                  : (std::vector<float>{0.6f, 0.8f, 0, -1, 5 / 13.f, 12 / 13.f}));
  }
}

TEST(HiddenStatePoolTest, RecomputedTokensAreNotAddedTwice) {
  const auto pool = MakePool(Kind::kMean, 1, 1);
  pool->OnStates(0, 4, std::vector<float>{1, 1});
  EXPECT_EQ(pool->FirstState(0, 2, 4), 2) << "nothing";
  EXPECT_EQ(pool->FirstState(0, 4, 4), 2);
  pool->OnStates(2, 4, std::vector<float>{1, 1});
  EXPECT_EQ(pool->FirstState(0, 4, 4), 4) << "it is complete";
  EXPECT_EQ(ValuesOf(*pool), std::vector<float>{1});
}

TEST(HiddenStatePoolTest, StatesWithoutDirectionAreAnError) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const auto pool = MakePool(Kind::kMean, 2, 2);
    pool->OnStates(0, 2, std::vector<float>{1, bad, 1, -bad});
    ASSERT_TRUE(pool->is_complete());
    EXPECT_EQ(pool->status().code(), StatusCode::kInternal);
    EXPECT_THAT(pool->status().message(), HasSubstr("non-finite hidden states"));
  }
  HiddenStatePool each(Kind::kEach, 2, 2);
  each.Reserve(2);
  each.OnStates(0, 2, std::vector<float>{1, std::nanf(""), 1, 1});
  EXPECT_EQ(each.status().code(), StatusCode::kInternal);
  const auto zero = MakePool(Kind::kMean, 2, 1);
  zero->OnStates(0, 2, std::vector<float>{1, 5, -1, 5});
  EXPECT_THAT(zero->status().message(), HasSubstr("no direction"));
}

// Keeps one batch's residual stream after the last layer.
class ResidualObserver : public LayerObserver {
 public:
  explicit ResidualObserver(int last_layer) : last_layer_(last_layer) {}
  void OnHidden(int layer, std::span<const float> states) override {
    if (layer == last_layer_) hidden.assign(states.begin(), states.end());
  }
  std::vector<float> hidden;

 private:
  const int last_layer_;
};

class PooledModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Result<GoldenCase> golden = ReadGoldenCase(GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status().message();
    tokens_ = golden->AllTokens();
    ASSERT_GE(tokens_.size(), static_cast<size_t>(kPooledTokens));
    tokens_.resize(kPooledTokens);
    ModelOptions options;
    options.model_dir = golden->dir;
    Result<std::unique_ptr<Model>> model = Model::Load(options, pool_);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(model).value();
  }
  int hidden_size() const { return model_->config().hidden_size; }

  // Tokens [0, end) in chunks, after another sequence's if there is one. Returns the last row's
  // logits.
  std::vector<float> Run(const std::shared_ptr<HiddenStatePool>& pool, int end, int chunk,
                         bool beside, LayerObserver* instead = nullptr) {
    constexpr int kPages = kPooledTokens / kGoldenPageSize + 1;
    std::vector<int32_t> pages(kPages), others(kPages);
    std::iota(pages.rbegin(), pages.rend(), 0);
    std::iota(others.begin(), others.end(), kPages);
    const KvFormat format = KvFormat::Of(model_->config().attention, kGoldenPageSize,
                                         DType::kFloat32);
    KvCache kv = model_->MakeUniformKvCache(format, {2 * kPages}).value();
    std::vector<float> logits;
    for (int begin = 0; begin < end; begin += chunk) {
      const int count = std::min(chunk, end - begin);
      Batch batch;
      if (beside) {
        batch.tokens.assign(tokens_.rbegin() + begin, tokens_.rbegin() + begin + count);
        batch.sequences.push_back({0, count, begin, others.data()});
      }
      batch.sequences.push_back(
          {static_cast<int>(batch.tokens.size()), count, begin, pages.data()});
      batch.tokens.insert(batch.tokens.end(), tokens_.begin() + begin,
                          tokens_.begin() + begin + count);
      batch.logit_rows = {static_cast<int32_t>(batch.tokens.size()) - 1};
      BatchObserver observer;
      if (pool != nullptr)
        observer.Add(*pool, batch.sequences.size() - 1, batch.sequences.back(), kPooledTokens);
      batch.observer = instead != nullptr ? instead : &observer;
      EXPECT_TRUE(model_->Forward(batch, kv).ok());
      const std::span<const float> found = model_->Logits(0, 1).value();
      logits.assign(found.begin(), found.end());
    }
    return logits;
  }

  std::vector<float> Pooled(Kind kind, int chunk, bool beside, int dimensions = 0) {
    const auto pool = MakePool(kind, hidden_size(), dimensions > 0 ? dimensions : hidden_size());
    Run(pool, kPooledTokens, chunk, beside);
    return ValuesOf(*pool);
  }

  std::vector<double> Expected(Kind kind, int dimensions);

  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
  std::vector<int32_t> tokens_;
  std::unique_ptr<Model> model_;
};

std::vector<double> PooledModelTest::Expected(Kind kind, int dimensions) {
  ResidualObserver residual(model_->config().num_layers - 1);
  Run(nullptr, kPooledTokens, kPooledTokens, false, &residual);
  const auto file = SafetensorsFile::Open(GoldenCasesDir() + "/" + GetParam() +
                                          "/model.safetensors");
  const std::vector<float> weight = ReadFloats(**file, "model.norm.weight").value();
  const auto width = static_cast<size_t>(hidden_size());
  std::vector<double> sum(static_cast<size_t>(dimensions));
  for (size_t t = kind == Kind::kLast ? kPooledTokens - 1 : 0; t < kPooledTokens; ++t) {
    const float* const x = &residual.hidden[t * width];
    const double squares = std::inner_product(x, x + width, x, 0.0);
    const double rms = std::sqrt(squares / static_cast<double>(width) + model_->config().norm_eps);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{x[i]} / rms * weight[i];
  }
  const double length = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
  for (double& x : sum) x /= length;
  return sum;
}

TEST_P(PooledModelTest, PoolsEqualTheDefinition) {
  for (const Kind kind : {Kind::kMean, Kind::kLast}) {
    for (const int dimensions : {hidden_size(), hidden_size() / 2, 3}) {
      const std::vector<double> expected = Expected(kind, dimensions);
      const std::vector<float> found = Pooled(kind, 33, true, dimensions);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_NEAR(LengthOf(found), 1, 1e-6);
      for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << i;
    }
  }
}

TEST_P(PooledModelTest, ChunksAndOtherSequencesChangeNoBit) {
  for (const Kind kind : {Kind::kMean, Kind::kLast}) {
    const std::vector<float> alone = Pooled(kind, kPooledTokens, false);
    for (const int chunk : {1, 7, 33, kPooledTokens}) {
      EXPECT_EQ(Pooled(kind, chunk, false), alone) << chunk;
      EXPECT_EQ(Pooled(kind, chunk, true), alone) << chunk;
    }
  }
}

TEST_P(PooledModelTest, RecomputedSequenceChangesNoBit) {
  for (const Kind kind : {Kind::kMean, Kind::kLast}) {
    const auto pool = MakePool(kind, hidden_size(), hidden_size());
    Run(pool, 40, 9, true);
    EXPECT_FALSE(pool->is_complete());
    Run(pool, kPooledTokens, 32, false);
    EXPECT_EQ(ValuesOf(*pool), Pooled(kind, kPooledTokens, false));
  }
}

TEST_P(PooledModelTest, LogitsOfTheStepAreTheSameBits) {
  const std::vector<float> without = Run(nullptr, kPooledTokens, 33, true);
  EXPECT_EQ(Run(MakePool(Kind::kMean, hidden_size(), 4), kPooledTokens, 33, true), without);
}

INSTANTIATE_TEST_SUITE_P(Families, PooledModelTest,
                         ::testing::Values("diff_gqa4_bias", "unilm_v1_gqa4_tied",
                                           "unilm_v2_wide_heads", "motif_gda_three_noise_one_group",
                                           "llama_mqa"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace diffserve
