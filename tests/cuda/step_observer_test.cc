// SPDX-License-Identifier: Apache-2.0
// Attention captures and pooled states of steps on the device: near those of the CPU's decoder, and
// the same bits whatever else is in the step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "models/diagnostics/attention_capture.h"
#include "models/diagnostics/batch_observer.h"
#include "models/diagnostics/hidden_state_pool.h"
#include "models/step_observer_cuda.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/models/golden_case.h"
#ifdef DIFFSERVE_CUDA_ON_CPU
#include "tests/kernels/shim/transfer_counts.h"
#endif

namespace diffserve {
namespace {

constexpr int kSeenTokens = 96;  // more than a page of either backend
const std::vector<int> kSeenPositions = {0, 5, 63, 64, 90};
// bfloat16 activations against float32 ones. The weights are random, so single slots differ most.
constexpr double kMapTolerance = 0.15;
constexpr double kMeanTolerance = 0.005;
constexpr double kCosineMin = 0.995;

using Maps = std::vector<std::vector<double>>;  // w of each layer, head and position

double Cosine(std::span<const float> a, std::span<const float> b) {
  const auto dot = [](std::span<const float> x, std::span<const float> y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

class StepObserverTest : public ::testing::TestWithParam<std::string> {
 protected:
  struct Observers {
    std::shared_ptr<AttentionCapture> capture;
    std::shared_ptr<HiddenStatePool> pool;
  };
  // How the observed sequence is computed.
  struct Schedule {
    int chunk = kSeenTokens;
    bool beside = false;  // another sequence generates in each step, and comes first there
  };

  void SetUp() override {
    if (!testing::KernelsCanRun()) GTEST_SKIP() << cuda::OpenDevice(0).status().message();
    Result<GoldenCase> golden = ReadGoldenCase(GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status().message();
    tokens_ = golden->AllTokens();
    ASSERT_GE(tokens_.size(), static_cast<size_t>(kSeenTokens));
    dir_ = golden->dir;
  }

  std::unique_ptr<Model> Load(Device device) {
    ModelOptions options;
    options.model_dir = dir_;
    options.device = device;
    options.limits.num_tokens = 128;
    options.limits.num_sequences = 4;
    options.batch_invariant = device == Device::kCuda;
    Result<std::unique_ptr<Model>> model = Model::Load(options, pool_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }
  static KvFormat FormatOf(const Model& model, Device device, DType pages) {
    const DiffSpec& spec = model.config().attention;
    return device == Device::kCuda ? cuda::ImageFormat(spec, pages) : KvFormat::Of(spec, 16, pages);
  }

  // Returns the logits of the last token. `observers` may be empty.
  std::vector<float> Run(Model& model, const KvFormat& format, const Observers& observers,
                         Schedule schedule) {
    const int num_pages = kSeenTokens / format.page_size + 1;
    std::vector<int32_t> pages(static_cast<size_t>(num_pages)), others(pages.size());
    std::iota(pages.rbegin(), pages.rend(), 0);
    std::iota(others.begin(), others.end(), num_pages);
    KvCache kv = model.MakeKvCache(LayersOf(model, format), SizeFor(model, 2 * num_pages)).value();
    std::vector<float> logits;
    int step = 0;
    for (int begin = 0; begin < kSeenTokens; begin += schedule.chunk, ++step) {
      const int count = std::min(schedule.chunk, kSeenTokens - begin);
      Batch batch;
      batch.tokens.assign(tokens_.begin() + begin, tokens_.begin() + begin + count);
      batch.sequences.push_back({0, count, begin, pages.data()});
      batch.num_prompt_tokens.push_back(count);
      batch.logit_rows.push_back(count - 1);
      if (schedule.beside) {
        batch.tokens.push_back(tokens_[static_cast<size_t>(step)]);
        batch.sequences.push_back({count, 1, step, others.data()});
        batch.num_prompt_tokens.push_back(0);
      }
      BatchObserver observer;
      if (observers.capture != nullptr)
        observer.Add(*observers.capture, 0, batch.sequences[0], kSeenTokens);
      if (observers.pool != nullptr)
        observer.Add(*observers.pool, 0, batch.sequences[0], kSeenTokens);
      if (!observer.empty()) batch.observer = &observer;
      EXPECT_TRUE(model.Forward(batch, kv).ok());
      const std::span<const float> found = model.Logits(0, 1).value();
      logits.assign(found.begin(), found.end());
    }
    return logits;
  }
  static std::vector<KvFormat> LayersOf(const Model& model, const KvFormat& format) {
    return std::vector<KvFormat>(static_cast<size_t>(model.config().num_kv_layers()), format);
  }
  static KvCacheSize SizeFor(const Model& model, int num_pages) {
    return {.num_pages = num_pages, .num_states = model.config().num_state_layers() > 0 ? 2 : 1};
  }

  std::shared_ptr<AttentionCapture> CaptureOf(const Model& model, const KvFormat& format) {
    AttentionSource source{model.config().attention, LayersOf(model, format)};
    std::vector<int> layers(source.layers.size());
    std::iota(layers.begin(), layers.end(), 0);
    auto capture = std::make_shared<AttentionCapture>(
        source, AttentionCapture::Selection{layers, kSeenPositions});
    capture->Reserve();
    return capture;
  }
  static Maps MapsOf(const Model& model, const AttentionCapture& capture) {
    Maps maps;
    const DiffSpec& spec = model.config().attention;
    for (size_t layer = 0; layer < capture.selection().layers.size(); ++layer) {
      for (int head = 0; head < spec.num_q1_heads; ++head) {
        const GroupKeys keys = capture.KeysOf(layer, GroupOf(spec, head));
        for (size_t i = 0; i < kSeenPositions.size(); ++i)
          maps.push_back(capture.MapsOf(layer, i, head, keys).w);
      }
    }
    return maps;
  }
  Maps Captured(Model& model, const KvFormat& format, Schedule schedule) {
    const auto capture = CaptureOf(model, format);
    Run(model, format, {capture, nullptr}, schedule);
    EXPECT_TRUE(capture->is_complete());
    return capture->is_complete() ? MapsOf(model, *capture) : Maps();
  }
  std::vector<float> Pooled(Model& model, const KvFormat& format, HiddenStatePool::Kind kind,
                            Schedule schedule) {
    const int width = model.config().hidden_size;
    const auto pool = std::make_shared<HiddenStatePool>(kind, width, width);
    pool->Reserve(kSeenTokens);
    Run(model, format, {nullptr, pool}, schedule);
    EXPECT_TRUE(pool->is_complete());
    EXPECT_TRUE(pool->status().ok());
    return {pool->values().begin(), pool->values().end()};
  }

  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
  std::string dir_;
  std::vector<int32_t> tokens_;
};

using AttentionOnDeviceTest = StepObserverTest;

TEST_P(AttentionOnDeviceTest, MapsAreNearTheCpus) {
  const std::unique_ptr<Model> cpu = Load(Device::kCpu), gpu = Load(Device::kCuda);
  ASSERT_TRUE(cpu != nullptr && gpu != nullptr);
  for (const DType pages : {DType::kBFloat16, DType::kInt8}) {
    const Maps expected = Captured(*cpu, FormatOf(*cpu, Device::kCpu, pages), {});
    const Maps found = Captured(*gpu, FormatOf(*gpu, Device::kCuda, pages), {33, true});
    ASSERT_EQ(found.size(), expected.size());
    ASSERT_FALSE(found.empty());
    double sum = 0, slots = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].size(), expected[i].size());
      for (size_t slot = 0; slot < found[i].size(); ++slot, ++slots) {
        ASSERT_NEAR(found[i][slot], expected[i][slot], kMapTolerance) << i << " " << slot;
        sum += std::abs(found[i][slot] - expected[i][slot]);
      }
    }
    EXPECT_LT(sum / slots, kMeanTolerance);
    RecordProperty("mean_" + std::string(NameOf(pages)), std::to_string(sum / slots));
  }
}

TEST_P(AttentionOnDeviceTest, ChunksAndOtherSequencesChangeNoBit) {
  const std::unique_ptr<Model> model = Load(Device::kCuda);
  ASSERT_NE(model, nullptr);
  for (const DType pages : {DType::kBFloat16, DType::kInt4}) {
    const KvFormat format = FormatOf(*model, Device::kCuda, pages);
    if (cuda::DiffAttentionUnsupported(model->config().attention, format) != nullptr) continue;
    const Maps whole = Captured(*model, format, {});
    EXPECT_EQ(Captured(*model, format, {33, true}), whole);
    EXPECT_EQ(Captured(*model, format, {7, false}), whole);
  }
}

TEST_P(AttentionOnDeviceTest, LogitsOfTheStepAreTheSameBits) {
  const std::unique_ptr<Model> model = Load(Device::kCuda);
  ASSERT_NE(model, nullptr);
  const KvFormat format = FormatOf(*model, Device::kCuda, DType::kBFloat16);
  const std::vector<float> without = Run(*model, format, {}, {33, true});
  EXPECT_EQ(Run(*model, format, {CaptureOf(*model, format), nullptr}, {33, true}), without);
}

INSTANTIATE_TEST_SUITE_P(Families, AttentionOnDeviceTest,
                         ::testing::Values("diff_mha_tied", "unilm_v1_mha", "unilm_v2_mha",
                                           "motif_gda_ratio4_bf16"),
                         [](const auto& info) { return info.param; });

using PoolsOnDeviceTest = StepObserverTest;

TEST_P(PoolsOnDeviceTest, PooledStatesAreNearTheCpus) {
  const std::unique_ptr<Model> cpu = Load(Device::kCpu), gpu = Load(Device::kCuda);
  ASSERT_TRUE(cpu != nullptr && gpu != nullptr);
  const KvFormat on_cpu = FormatOf(*cpu, Device::kCpu, DType::kBFloat16);
  const KvFormat on_gpu = FormatOf(*gpu, Device::kCuda, DType::kBFloat16);
  for (const auto kind :
       {HiddenStatePool::Kind::kMean, HiddenStatePool::Kind::kLast, HiddenStatePool::Kind::kEach}) {
    const std::vector<float> expected = Pooled(*cpu, on_cpu, kind, {});
    const std::vector<float> found = Pooled(*gpu, on_gpu, kind, {33, true});
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_GT(Cosine(found, expected), kCosineMin);
  }
}

TEST_P(PoolsOnDeviceTest, ChunksAndOtherSequencesChangeNoBit) {
  const std::unique_ptr<Model> model = Load(Device::kCuda);
  ASSERT_NE(model, nullptr);
  const KvFormat format = FormatOf(*model, Device::kCuda, DType::kBFloat16);
  const std::vector<float> whole = Pooled(*model, format, HiddenStatePool::Kind::kMean, {});
  EXPECT_EQ(Pooled(*model, format, HiddenStatePool::Kind::kMean, {33, true}), whole);
  EXPECT_EQ(Pooled(*model, format, HiddenStatePool::Kind::kMean, {7, false}), whole);
}

// With Phi-4-mini-flash, the last layers would compute only the last token without an observer.
INSTANTIATE_TEST_SUITE_P(Families, PoolsOnDeviceTest,
                         ::testing::Values("diff_mha_tied", "motif_gda_ratio4_bf16",
                                           "phi4flash_12_layers_bf16_residual"),
                         [](const auto& info) { return info.param; });

#ifdef DIFFSERVE_CUDA_ON_CPU
using TransfersTest = StepObserverTest;

TEST_P(TransfersTest, OnlyAStepWithAnObserverCopiesMore) {
  const std::unique_ptr<Model> model = Load(Device::kCuda);
  ASSERT_NE(model, nullptr);
  const KvFormat format = FormatOf(*model, Device::kCuda, DType::kBFloat16);
  const auto copies = [&](const Observers& observers) {
    shim::transfer_counts = {};
    Run(*model, format, observers, {});
    return shim::transfer_counts.to_host;
  };
  const int64_t without = copies({});
  EXPECT_EQ(without, 1);  // the logits
  const auto source = AttentionSource{model->config().attention, LayersOf(*model, format)};
  const auto capture = std::make_shared<AttentionCapture>(
      source, AttentionCapture::Selection{{0}, kSeenPositions});
  capture->Reserve();
  // One layer's q and its two pages; no other layer is copied.
  EXPECT_EQ(copies({capture, nullptr}), without + 3);
}

INSTANTIATE_TEST_SUITE_P(Families, TransfersTest, ::testing::Values("diff_mha_tied"),
                         [](const auto& info) { return info.param; });
#endif

}  // namespace
}  // namespace diffserve
