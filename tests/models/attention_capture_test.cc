// SPDX-License-Identifier: Apache-2.0
// Captures of small models with every form of attention and every page format, against a naive
// computation in double precision from the q and K of the same step.
#include "models/diagnostics/attention_capture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "models/diagnostics/batch_observer.h"
#include "models/model.h"
#include "tests/testing/kernels/attention_batch.h"
#include "tests/testing/kernels/attention_specs.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

constexpr int kCapturedTokens = 70;
constexpr int kCapturePageSize = 16;
const std::vector<int> kPositions = {0, 5, 31, 32, 66};

using Query = std::tuple<int, int, int>;  // layer, head, position
struct NaiveMaps {
  std::vector<double> p1, p2;
  double lambda = 0;
};

std::vector<double> Softmax(std::vector<double> scores) {
  double largest = -HUGE_VAL, sum = 0;
  for (double score : scores) largest = std::max(largest, score);
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
  return scores;
}

// Relative to the largest of all slots that the query sees (LogitScale::kRow).
std::vector<double> RoundedToBits(std::vector<double> scores, int bits) {
  double largest = 0;
  for (double score : scores) largest = std::max(largest, std::abs(score));
  const double step = largest / ((1 << (bits - 1)) - 1);
  for (double& score : scores) score = std::nearbyint(score / step) * step;
  return scores;
}

// Computes all maps of a sequence from the definition, in the head order of diff_spec.h.
class NaiveObserver : public SequenceObserver {
 public:
  bool Wants(int, int, int) const override { return true; }
  bool WantsAttention(int) const override { return true; }
  void OnAttention(int layer, const DiffAttentionArgs<float>& args,
                   const SequenceTokens& sequence) override {
    const DiffSpec& spec = args.spec;
    for (int i = 0; i < sequence.num_tokens; ++i) {
      const int row = sequence.first_row + i;
      for (int head = 0; head < spec.num_q1_heads; ++head) {
        NaiveMaps& naive = maps[{layer, head, sequence.position + i}];
        const int group = head * spec.num_kv_groups / spec.num_q1_heads;
        const auto map = [&](int k_map, int q_head) {
          return MapOf(args, {row, group, k_map, q_head}, sequence, sequence.position + i + 1);
        };
        naive.p1 = map(0, head);
        if (spec.num_q2_heads == 0) continue;
        const int noise_head = head * spec.num_q2_heads / spec.num_q1_heads;
        naive.p2 = map(spec.k_maps == 2 ? 1 : 0, spec.num_q1_heads + noise_head);
        naive.lambda = spec.lambda_kind == LambdaKind::kPerLayer
                           ? double{args.lambda}
                           : double{args.lambda_rows[row * spec.num_q1_heads + head]};
      }
    }
  }

  std::map<Query, NaiveMaps> maps;

 private:
  struct Place {
    int row, group, k_map, q_head;
  };
  static std::vector<double> MapOf(const DiffAttentionArgs<float>& args, const Place& place,
                                   const SequenceTokens& sequence, int slots) {
    const DiffSpec& spec = args.spec;
    const float* q = args.q + place.row * spec.q_width() + place.q_head * spec.head_dim;
    std::vector<double> scores;
    for (int slot = 0; slot < slots; ++slot) {
      const std::byte* page = args.kv.Page(sequence.pages[slot / kCapturePageSize], place.group);
      const std::vector<double> k = KRow(args.kv.format, page, place.k_map,
                                         slot % kCapturePageSize);
      const double product = std::inner_product(k.begin(), k.end(), q, 0.0);
      scores.push_back(product / std::sqrt(spec.head_dim));
    }
    if (args.logit_quant.is_on()) scores = RoundedToBits(scores, args.logit_quant.bits);
    return Softmax(std::move(scores));
  }
};

class AttentionCaptureTest : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  void SetUp() override {
    const auto& [name, pages] = GetParam();
    Result<GoldenCase> golden = ReadGoldenCase(name);
    ASSERT_TRUE(golden.ok()) << golden.status().message();
    tokens_ = golden->AllTokens();
    ASSERT_GE(tokens_.size(), static_cast<size_t>(kCapturedTokens));
    dir_ = golden->dir;
    Load({});
    ASSERT_NE(model_, nullptr);
    if (!HasPagesOf(*model_, pages)) GTEST_SKIP() << "its heads have no such pages";
    const DiffSpec& spec = model_->config().attention;
    source_.spec = spec;
    source_.layers.assign(static_cast<size_t>(model_->config().num_layers),
                          KvFormat::Of(spec, kCapturePageSize, pages));
    for (int layer = 0; layer < source_.num_layers(); ++layer) layers_.push_back(layer);
  }

  void Load(LogitQuant logit_quant) {
    ModelOptions options;
    options.model_dir = dir_;
    options.logit_quant = logit_quant;
    Result<std::unique_ptr<Model>> model = Model::Load(options, pool_);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(model).value();
  }

  std::shared_ptr<AttentionCapture> MakeCapture() const {
    auto capture = std::make_shared<AttentionCapture>(
        source_, AttentionCapture::Selection{layers_, kPositions});
    capture->Reserve();
    return capture;
  }

  // Runs the sequence's tokens in chunks, after another sequence's if there is one. The capture
  // must complete exactly when the last position has been computed.
  void Run(AttentionCapture& capture, int chunk, bool beside, SequenceObserver* other = nullptr) {
    constexpr int kPages = kCapturedTokens / kCapturePageSize + 1;
    std::vector<int32_t> pages(kPages), others(kPages);
    std::iota(pages.begin(), pages.end(), 0);
    std::reverse(pages.begin(), pages.end());
    std::iota(others.begin(), others.end(), kPages);
    KvCache kv = model_->MakeKvCache(source_.layers, {2 * kPages}).value();
    for (int begin = 0; begin < kCapturedTokens; begin += chunk) {
      const int count = std::min(chunk, kCapturedTokens - begin);
      Batch batch;
      if (beside) {
        batch.tokens.assign(tokens_.rbegin() + begin, tokens_.rbegin() + begin + count);
        batch.sequences.push_back({0, count, begin, others.data()});
      }
      batch.sequences.push_back(
          {static_cast<int>(batch.tokens.size()), count, begin, pages.data()});
      batch.tokens.insert(batch.tokens.end(), tokens_.begin() + begin,
                          tokens_.begin() + begin + count);
      BatchObserver observer;
      for (SequenceObserver* each : {other, static_cast<SequenceObserver*>(&capture)}) {
        if (each != nullptr)
          observer.Add(*each, beside ? 1 : 0, batch.sequences.back(), kCapturedTokens);
      }
      if (!observer.empty()) batch.observer = &observer;
      EXPECT_FALSE(capture.is_complete());
      ASSERT_TRUE(model_->Forward(batch, kv).ok());
      if (capture.is_complete()) return;
    }
  }

  // Everything that the capture gives, by query.
  std::map<Query, AttentionMaps> AllMaps(const AttentionCapture& capture) const {
    std::map<Query, AttentionMaps> all;
    const DiffSpec& spec = source_.spec;
    for (int layer : layers_) {
      for (int head = 0; head < spec.num_q1_heads; ++head) {
        const auto index = static_cast<size_t>(layer);
        const GroupKeys keys = capture.KeysOf(index, GroupOf(spec, head));
        for (size_t i = 0; i < kPositions.size(); ++i)
          all[{layer, head, kPositions[i]}] = capture.MapsOf(index, i, head, keys);
      }
    }
    return all;
  }

  void ExpectMapsOfTheDefinition();

  std::map<Query, AttentionMaps> Captured(int chunk, bool beside) {
    const auto capture = MakeCapture();
    Run(*capture, chunk, beside);
    EXPECT_TRUE(capture->is_complete());
    return AllMaps(*capture);
  }

  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
  std::string dir_;
  std::vector<int32_t> tokens_;
  std::unique_ptr<Model> model_;
  AttentionSource source_;
  std::vector<int> layers_;
};

void AttentionCaptureTest::ExpectMapsOfTheDefinition() {
  const auto capture = MakeCapture();
  NaiveObserver naive;
  Run(*capture, 33, /*beside=*/true, &naive);
  ASSERT_TRUE(capture->is_complete());
  const bool has_second = source_.num_maps() == 2;
  for (const auto& [query, found] : AllMaps(*capture)) {
    const NaiveMaps& expected = naive.maps.at(query);
    const size_t slots = static_cast<size_t>(std::get<2>(query)) + 1;
    ASSERT_EQ(found.first.p.size(), slots);
    ASSERT_EQ(found.second.p.size(), has_second ? slots : 0);
    EXPECT_EQ(found.lambda, expected.lambda);
    for (size_t slot = 0; slot < slots; ++slot) {
      // scale is 1 / sqrt(head_dim) rounded to float32, here and in the kernels.
      EXPECT_NEAR(found.first.p[slot], expected.p1[slot], 1e-6);
      const double p2 = has_second ? expected.p2[slot] : 0;
      EXPECT_NEAR(has_second ? found.second.p[slot] : 0, p2, 1e-6);
      EXPECT_NEAR(found.w[slot], expected.p1[slot] - expected.lambda * p2, 1e-6);
    }
  }
}

TEST_P(AttentionCaptureTest, MapsEqualTheDefinition) { ExpectMapsOfTheDefinition(); }

TEST_P(AttentionCaptureTest, MapsAreOfTheRoundedLogits) {
  Load({.bits = 6, .scale = LogitScale::kRow});
  ExpectMapsOfTheDefinition();
}

TEST_P(AttentionCaptureTest, CaptureIsBitwiseIndependentOfChunksAndBatch) {
  const std::map<Query, AttentionMaps> whole = Captured(kCapturedTokens, false);
  for (const auto& [chunk, beside] : {std::pair(7, false), {1, false}, {33, true}}) {
    const std::map<Query, AttentionMaps> found = Captured(chunk, beside);
    ASSERT_EQ(found.size(), whole.size());
    for (const auto& [query, maps] : whole) {
      EXPECT_EQ(found.at(query).w, maps.w) << "chunk " << chunk;
      EXPECT_EQ(found.at(query).second.logits, maps.second.logits) << "chunk " << chunk;
    }
  }
}

TEST_P(AttentionCaptureTest, RecomputedTokensAreCapturedAgain) {
  constexpr int kPages = kCapturedTokens / kCapturePageSize + 1;
  KvCache kv = model_->MakeKvCache(source_.layers, {2 * kPages}).value();
  const auto capture = MakeCapture();
  // 40 tokens on the first pages, which are lost. Then other pages, unknown to the capture.
  for (const auto& [first_page, shift, count] :
       {std::tuple(0, 1, 40), {kPages, 0, 33}, {kPages, 0, kCapturedTokens}}) {
    std::vector<int32_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), first_page);
    const int begin = count == kCapturedTokens ? 33 : 0;
    Batch batch;
    for (int i = begin; i < count; ++i)
      batch.tokens.push_back(tokens_[static_cast<size_t>((i + shift) % kCapturedTokens)]);
    batch.sequences = {{0, count - begin, begin, pages.data()}};
    BatchObserver observer;
    observer.Add(*capture, 0, batch.sequences.back(), kCapturedTokens);
    batch.observer = &observer;
    ASSERT_TRUE(model_->Forward(batch, kv).ok());
  }
  ASSERT_TRUE(capture->is_complete());
  const std::map<Query, AttentionMaps> expected = Captured(kCapturedTokens, false);
  for (const auto& [query, maps] : AllMaps(*capture)) EXPECT_EQ(maps.w, expected.at(query).w);
}

// After a chunk's windows its pages may be gone, even those that an earlier chunk has seen.
TEST(WindowCaptureTest, HasThePagesThatEachChunkSaw) {
  constexpr int kWindow = 20;
  const DiffSpec spec = testing::DiffLlamaSpec(4, 2, 16);
  const auto batch_of = [&](int position, int num_tokens, const auto& body) {
    testing::AttentionBatch batch(
        spec, {{position, num_tokens}},
        {.format = KvFormat::Of(spec, kCapturePageSize, DType::kBFloat16), .window = kWindow});
    batch.ForgetPagesBehindWindow();
    std::vector<float> out;
    body(batch.Args(out));
  };
  const std::vector<int> positions = {25, 60, 66};
  AttentionCapture capture({spec, {KvFormat::Of(spec, kCapturePageSize, DType::kBFloat16)}},
                           {{0}, positions});
  capture.Reserve();
  for (const auto& [begin, count] : {std::pair{10, 20}, {30, 3}, {33, 30}, {63, 7}}) {
    batch_of(begin, count, [&](const DiffAttentionArgs<float>& args) {
      capture.OnAttention(0, args, args.batch.front());
    });
  }
  capture.OnEnd(70);
  batch_of(0, 70, [&](const DiffAttentionArgs<float>& args) {
    for (int head = 0; head < spec.num_q1_heads; ++head) {
      const GroupKeys keys = capture.KeysOf(0, GroupOf(spec, head));
      for (size_t i = 0; i < positions.size(); ++i) {
        EXPECT_EQ(capture.MapsOf(0, i, head, keys).w,
                  AttentionMapsRef(args, args.batch.front(), positions[i], head).w);
      }
    }
  });
}

std::string CaseName(const ::testing::TestParamInfo<std::tuple<std::string, DType>>& info) {
  return std::get<0>(info.param) + "_" + std::string(NameOf(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(
    Families, AttentionCaptureTest,
    ::testing::Combine(::testing::Values("diff_gqa4_bias", "llama_mqa", "motif_gqa2_long_theta",
                                         "motif_gda_ratio2_two_noise_a_group",
                                         "unilm_v1_lambda_extremes", "unilm_v2_gqa2_bf16"),
                       ::testing::ValuesIn(cpu::kPageTypes)),
    CaseName);

}  // namespace
}  // namespace diffserve
