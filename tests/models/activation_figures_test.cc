// SPDX-License-Identifier: Apache-2.0
// ActivationFigures of small models with every form of attention, against a naive computation in
// double precision from the same q and K.
#include "models/diagnostics/activation_figures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attention/attention_maps.h"
#include "models/model.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

constexpr int kTokens = 70;
constexpr int kPageSize = 16;
const AnswerSpans kSpans = {{{3, 9}, {20, 21}}, 50};

struct NaiveHead {
  std::vector<double> kappa, entropy1, entropy2, answer, answer1, answer2;
};
struct NaiveLayer {
  std::vector<double> logits1, logits2, hidden;
  std::vector<NaiveHead> heads;
};

double NaiveEntropy(const std::vector<double>& p) {
  double entropy = 0;
  for (double value : p) entropy -= value > 0 ? value * std::log(value) : 0;
  return entropy;
}

// The sum of |values| over the answer, as a share of the sum over all slots.
double AnswerShare(const std::vector<double>& values) {
  double answer = 0, all = 0;
  for (size_t slot = 0; slot < values.size(); ++slot) {
    all += std::abs(values[slot]);
    for (TokenRange range : kSpans.answer) {
      const int at = static_cast<int>(slot);
      if (at >= range.begin && at < range.end) answer += std::abs(values[slot]);
    }
  }
  return answer / all;
}

// Passes on what it sees, and records it.
class NaiveFigures : public LayerObserver {
 public:
  NaiveFigures(const ModelConfig& config, LayerObserver* other)
      : layers(static_cast<size_t>(config.num_layers)), other_(other) {}

  void OnAttention(int l, const DiffAttentionArgs<float>& args) override {
    if (other_ != nullptr) other_->OnAttention(l, args);
    const DiffSpec& spec = args.spec;
    NaiveLayer& layer = layers[static_cast<size_t>(l)];
    layer.heads.resize(static_cast<size_t>(spec.num_q1_heads));
    const SequenceTokens& sequence = args.batch.front();
    for (int row = 0; row < sequence.num_tokens; ++row) {
      for (int head = 0; head < spec.num_q1_heads; ++head) {
        const AttentionMaps maps = AttentionMapsRef(args, sequence, row, head);
        const bool is_first = spec.has_second_map() &&
                              head % (spec.num_q1_heads / spec.num_q2_heads) == 0;
        Append(maps.first.logits, layer.logits1);
        if (is_first) Append(maps.second.logits, layer.logits2);
        Remember(maps, sequence.position + row, layer.heads[static_cast<size_t>(head)]);
      }
    }
  }
  void OnHidden(int l, std::span<const float> hidden) override {
    if (other_ != nullptr) other_->OnHidden(l, hidden);
    NaiveLayer& layer = layers[static_cast<size_t>(l)];
    layer.hidden.insert(layer.hidden.end(), hidden.begin(), hidden.end());
  }

  std::vector<NaiveLayer> layers;

 private:
  static void Append(const std::vector<double>& values, std::vector<double>& all) {
    all.insert(all.end(), values.begin(), values.end());
  }
  static void Remember(const AttentionMaps& maps, int position, NaiveHead& head) {
    const auto squares = [](const std::vector<double>& values) {
      return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
    };
    const bool looks = position >= kSpans.query_from;
    head.entropy1.push_back(NaiveEntropy(maps.first.p));
    if (looks) head.answer.push_back(AnswerShare(maps.w));
    if (looks) head.answer1.push_back(AnswerShare(maps.first.p));
    if (maps.second.p.empty()) return;
    head.entropy2.push_back(NaiveEntropy(maps.second.p));
    if (looks) head.answer2.push_back(AnswerShare(maps.second.p));
    head.kappa.push_back(
        std::sqrt((squares(maps.first.p) + maps.lambda * maps.lambda * squares(maps.second.p)) /
                  squares(maps.w)));
  }

  LayerObserver* const other_;
};

void ExpectLike(const Magnitudes& found, std::vector<double> numbers, const std::string& name) {
  for (double& number : numbers) number = std::abs(number);
  std::ranges::sort(numbers);
  ASSERT_EQ(found.count(), static_cast<int64_t>(numbers.size())) << name;
  if (numbers.empty()) return;
  EXPECT_EQ(found.num_not_finite(), 0) << name;
  for (int rank : {1, 2, 3, 10, 100}) {
    const double expected = numbers[numbers.size() - static_cast<size_t>(rank)];
    EXPECT_NEAR(found.Top(rank), expected, 1e-5 * expected) << name << " rank " << rank;
  }
  const double median = numbers[(numbers.size() + 1) / 2 - 1];
  EXPECT_NEAR(found.Quantile(0.5), median, median * (1.0 / 512 + 1e-4)) << name;
}

void ExpectLike(const Mean& found, const std::vector<double>& numbers, const std::string& name) {
  ASSERT_EQ(found.count(), static_cast<int64_t>(numbers.size())) << name;
  if (numbers.empty()) return;
  const double mean = std::accumulate(numbers.begin(), numbers.end(), 0.0) /
                      static_cast<double>(numbers.size());
  EXPECT_NEAR(found.value(), mean, 1e-4 * mean) << name;
}

class ActivationFiguresTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Result<GoldenCase> golden = ReadGoldenCase(GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status().message();
    tokens_ = golden->AllTokens();
    ASSERT_GE(tokens_.size(), static_cast<size_t>(kTokens));
    ModelOptions options;
    options.model_dir = golden->dir;
    Result<std::unique_ptr<Model>> model = Model::Load(options, pool_);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(model).value();
  }

  // Logits of the last token.
  std::vector<float> Run(LayerObserver* observer, int chunk) {
    std::vector<int32_t> pages(kTokens / kPageSize + 1);
    std::iota(pages.begin(), pages.end(), 0);
    KvCache kv = model_
                     ->MakeUniformKvCache(
                         KvFormat::Of(model_->config().attention, kPageSize, model_->dtype()),
                         {static_cast<int>(pages.size())})
                     .value();
    for (int begin = 0; begin < kTokens; begin += chunk) {
      const int count = std::min(chunk, kTokens - begin);
      Batch batch;
      batch.tokens.assign(tokens_.begin() + begin, tokens_.begin() + begin + count);
      batch.sequences = {{0, count, begin, pages.data()}};
      batch.logit_rows = {count - 1};
      batch.observer = observer;
      EXPECT_TRUE(model_->Forward(batch, kv).ok());
    }
    const std::span<const float> logits = model_->Logits(0, 1).value();
    return {logits.begin(), logits.end()};
  }

  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
  std::vector<int32_t> tokens_;
  std::unique_ptr<Model> model_;
};

TEST_P(ActivationFiguresTest, FiguresEqualTheNaiveComputationForEveryChunking) {
  for (int chunk : {kTokens, 33}) {
    ActivationFigures figures(model_->config(), pool_);
    figures.SetSpans(kSpans);
    NaiveFigures naive(model_->config(), &figures);
    Run(&naive, chunk);
    ASSERT_EQ(figures.layers().size(), naive.layers.size());
    for (size_t l = 0; l < naive.layers.size(); ++l) {
      const LayerFigures& found = figures.layers()[l];
      const NaiveLayer& expected = naive.layers[l];
      const std::string name = "layer " + std::to_string(l);
      ExpectLike(found.logits1, expected.logits1, name + " map 1");
      ExpectLike(found.logits2, expected.logits2, name + " map 2");
      ExpectLike(found.hidden, expected.hidden, name + " hidden");
      ASSERT_EQ(found.heads.size(), expected.heads.size());
      for (size_t h = 0; h < found.heads.size(); ++h) {
        const std::string head = name + " head " + std::to_string(h);
        ExpectLike(found.heads[h].kappa, expected.heads[h].kappa, head + " kappa");
        ExpectLike(found.heads[h].entropy1, expected.heads[h].entropy1, head + " entropy 1");
        ExpectLike(found.heads[h].entropy2, expected.heads[h].entropy2, head + " entropy 2");
        ExpectLike(found.heads[h].answer, expected.heads[h].answer, head + " answer");
        ExpectLike(found.heads[h].answer1, expected.heads[h].answer1, head + " answer 1");
        ExpectLike(found.heads[h].answer2, expected.heads[h].answer2, head + " answer 2");
        std::vector<double> kappas = expected.heads[h].kappa;
        if (kappas.empty()) continue;
        std::ranges::sort(kappas);
        const double high = kappas[static_cast<size_t>(std::ceil(0.9 * kTokens)) - 1];
        EXPECT_NEAR(found.heads[h].kappas.Quantile(0.9), high, high * (1.0 / 512 + 1e-4)) << head;
      }
    }
  }
}

TEST_P(ActivationFiguresTest, TokensWithoutAnAnswerAreNotCounted) {
  ActivationFigures figures(model_->config(), pool_);
  figures.SetSpans(kSpans);
  Run(&figures, kTokens);
  figures.SetSpans({});
  Run(&figures, kTokens);
  const HeadFigures& head = figures.layers()[0].heads[0];
  EXPECT_EQ(head.answer.count(), kTokens - kSpans.query_from);
  EXPECT_EQ(head.entropy1.count(), 2 * kTokens);
}

TEST_P(ActivationFiguresTest, FiguresAreTheSameWithOneAndWithFourThreads) {
  std::vector<double> found[2];
  for (int i : {0, 1}) {
    ThreadPool pool({.num_threads = i == 0 ? 1 : 4, .pin = false, .spin_us = 0});
    ActivationFigures figures(model_->config(), pool);
    figures.SetSpans(kSpans);
    Run(&figures, kTokens);
    for (const LayerFigures& layer : figures.layers()) {
      const HeadFigures all = layer.AllHeads();
      for (const Magnitudes* magnitudes : {&layer.logits1, &layer.hidden}) {
        found[i].insert(found[i].end(), {double{magnitudes->Top(1)}, double{magnitudes->Top(100)},
                                         magnitudes->Quantile(0.5)});
      }
      for (const Mean* mean : {&all.entropy1, &all.answer, &all.answer1})
        found[i].push_back(mean->value());
    }
  }
  EXPECT_EQ(found[0], found[1]);
}

TEST_P(ActivationFiguresTest, MeasuringChangesNoBitOfTheLogits) {
  const std::vector<float> unobserved = Run(nullptr, kTokens);
  ActivationFigures figures(model_->config(), pool_);
  EXPECT_EQ(Run(&figures, kTokens), unobserved);
}

INSTANTIATE_TEST_SUITE_P(Families, ActivationFiguresTest,
                         ::testing::Values("diff_gqa4_bias", "llama_mqa",
                                           "motif_gda_ratio2_two_noise_a_group",
                                           "unilm_v1_lambda_extremes", "unilm_v2_gqa2_bf16"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace diffserve
