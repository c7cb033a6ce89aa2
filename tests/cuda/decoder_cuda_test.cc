// SPDX-License-Identifier: Apache-2.0
// The whole step on the device against the golden cases, whose numbers come from the authors' code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>

#include "tests/cuda/device_array.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

class CudaDecoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::KernelsCanRun()) GTEST_SKIP() << cuda::OpenDevice(0).status().message();
  }

  static ModelOptions OptionsOf(const GoldenCase& golden) {
    ModelOptions options;
    options.model_dir = golden.dir;
    options.device = Device::kCuda;
    options.limits.num_tokens = 320;
    options.limits.num_sequences = 8;
    return options;
  }
  std::unique_ptr<Model> Load(const GoldenCase& golden, LogitQuant logits = {},
                              Device device = Device::kCuda) {
    ModelOptions options = OptionsOf(golden);
    options.logit_quant = logits;
    options.device = device;
    options.batch_invariant = batch_invariant_;
    Result<std::unique_ptr<Model>> model = Model::Load(options, pool_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }

  // The cases that have kernels for their shape: head_dim 16.
  static std::vector<GoldenCase> Cases() {
    std::vector<GoldenCase> cases;
    for (const std::string& name : GoldenCaseNames()) {
      GoldenCase golden = ReadGoldenCase(name).value();
      if (InspectModel(OptionsOf(golden)).ok()) cases.push_back(std::move(golden));
    }
    return cases;
  }

  bool batch_invariant_ = true;
  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
};

// With batch-invariant products and with those that cuBLASLt prefers for each number of rows.
class CudaDecoderModesTest : public CudaDecoderTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    CudaDecoderTest::SetUp();
    batch_invariant_ = GetParam();
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, CudaDecoderModesTest, ::testing::Bool(), testing::NameOfMode);

TEST_P(CudaDecoderModesTest, EveryFamilyIsWithinTwiceTheReferencesBFloat16Error) {
  std::map<std::string, int> found;
  for (const GoldenCase& golden : Cases()) {
    const std::unique_ptr<Model> model = Load(golden);
    ASSERT_NE(model, nullptr);
    ++found[golden.family];
    const GoldenRun run =
        GoldenRunner(*model, golden.prompt.size(), 64).Chunks(golden.prompt, golden.prompt.size());
    EXPECT_LE(GoldenError(golden, run), kGoldenBFloat16Share * golden.bfloat16_error)
        << golden.name;
  }
  EXPECT_EQ(found.size(), 7u);
  // One of a pair of heads, one of grouped keys, and that of the residual stream.
  EXPECT_GE(found["phi4flash"], 3);
}

// The error of bfloat16, compared with that of codes.
TEST_P(CudaDecoderModesTest, QuantisedPagesAreWithinTheirMultipleOfTheBFloat16Error) {
  for (const char* name : {"diff_mha_tied", "unilm_v2_mha", "motif_gda_ratio4_bf16"}) {
    const GoldenCase golden = ReadGoldenCase(name).value();
    const std::unique_ptr<Model> model = Load(golden);
    ASSERT_NE(model, nullptr);
    for (const auto& [pages, share] : kGoldenPagesShares) {
      const GoldenRun run = GoldenRunner(*model, golden.prompt.size(), cuda::kPageSize, pages)
                                .Chunks(golden.prompt, golden.prompt.size());
      const double shares = GoldenError(golden, run) / golden.bfloat16_error;
      EXPECT_LE(shares, share + kGoldenBFloat16Share) << name << " " << NameOf(pages);
      RecordProperty(std::string(name) + "_" + std::string(NameOf(pages)), std::to_string(shares));
    }
  }
}

TEST_P(CudaDecoderModesTest, EqualStepsGiveEqualBits) {
  const GoldenCase golden = ReadGoldenCase("diff_mha_tied").value();
  const std::unique_ptr<Model> model = Load(golden);
  ASSERT_NE(model, nullptr);
  const auto logits = [&] {
    GoldenRunner runner(*model, golden.prompt.size(), cuda::kPageSize);
    return runner.Chunks(golden.prompt, 7).logits;
  };
  EXPECT_EQ(logits(), logits());
}

// The golden cases' heads are narrow. Wider ones, for which Hopper has its own prefill kernel, are
// compared with the CPU's decoder on random weights: a prompt in two chunks and generated rows.
class CudaWideHeadsTest : public CudaDecoderTest {
 protected:
  // Two layers of random weights.
  std::unique_ptr<Model> LoadWide(const char* family, int head_dim, Device device) {
    const TemporaryDirectory directory;
    std::ofstream(directory.path() / "config.json")
        << R"({"model_type": ")" << family
        << R"(", "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": )"
        << head_dim
        << R"(, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 61, "max_position_embeddings": 256,)"
        << R"( "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2})";
    ModelOptions options;
    options.model_dir = directory.path();
    options.device = device;
    options.isa = SupportedCpuIsas().front();
    options.weight_format = WeightFormat::kBFloat16;
    options.dummy_weights = true;
    options.seed = 7;
    options.batch_invariant = batch_invariant_;
    options.limits = limits_;
    Result<std::unique_ptr<Model>> model = Model::Load(options, pool_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }
  // The last three tokens are generated. All layers have pages of `pages`, except those in
  // `skipped`.
  static std::vector<float> LogitsOf(Model& model, Device device, size_t chunk,
                                     DType pages = DType::kBFloat16,
                                     const std::vector<size_t>& skipped = {}) {
    std::vector<int32_t> tokens(72);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((i * i + 3 * i) % 61);
    GoldenRunner runner(model, tokens.size(),
                        device == Device::kCpu ? kGoldenPageSize : cuda::kPageSize, pages, skipped);
    runner.GenerateFrom(69);
    return runner.Chunks(tokens, chunk).logits;
  }
  // The largest difference, relative to the largest logit.
  static float Distance(const std::vector<float>& a, const std::vector<float>& b) {
    float largest = 0, worst = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(a[i]));
      worst = std::max(worst, std::abs(a[i] - b[i]));
    }
    return worst / largest;
  }

  StepLimits limits_;
};

#if defined(DIFFSERVE_CUDA_ON_CPU)
// Decodes of empty sequences: the logits of their first tokens, after each was drawn.
std::vector<float> Decode(Model& model, int num_sequences = 1, DType dtype = DType::kBFloat16) {
  const DiffSpec& spec = model.config().attention;
  KvCache kv =
      model.MakeUniformKvCache(KvFormat::Of(spec, cuda::kPageSize, dtype), {num_sequences}).value();
  std::vector<int32_t> pages;
  for (int i = 0; i < num_sequences; ++i) pages.push_back(i);
  Batch batch;
  for (int i = 0; i < num_sequences; ++i) {
    batch.tokens.push_back(7 + i);
    batch.sequences.push_back(
        {.first_row = i, .num_tokens = 1, .position = 0, .pages = &pages[static_cast<size_t>(i)]});
    batch.num_prompt_tokens.push_back(0);
    batch.logit_rows.push_back(i);
    batch.sample_rows.push_back({.kind = SampleKind::kGreedy});
  }
  EXPECT_TRUE(testing::IsOk(model.Forward(batch, kv)));
  EXPECT_TRUE(testing::IsOk(model.Collect().status()));
  const std::span<const float> logits = model.Logits(0, num_sequences).value();
  return {logits.begin(), logits.end()};
}

// Each product asks for the next one's weights, all of which fit: two layers of 64 features, but
// for the first product, and 61 rows of the output matrix.
TEST_F(CudaWideHeadsTest, NextWeightsAreBroughtNearAndChangeNothing) {
  const int64_t qkv = 384, out = 2 * 64, gate_up = 128, down = 64, output = 61;  // 128 bytes each
  const auto run = [&](int l2_bytes) {
    shim::simulated_device.l2_bytes = l2_bytes;
    const std::unique_ptr<Model> model = LoadWide("llama", 64, Device::kCuda);
    shim::prefetched_lines = 0;
    return Decode(*model);
  };
  const std::vector<float> expected = run(0);
  EXPECT_EQ(shim::prefetched_lines, 0);
  EXPECT_EQ(run(1 << 20), expected);
  EXPECT_EQ(shim::prefetched_lines, 2 * (out + gate_up + down) + qkv + output);
  shim::simulated_device = {};
}

// cuBLASLt's products are not counted.
TEST_F(CudaWideHeadsTest, ChunkBesideDecodesIsComputedInTheirPass) {
  constexpr int kDecodes = 3, kChunk = 24;
  for (const bool batch_invariant : {true, false}) {
    batch_invariant_ = batch_invariant;
    const std::unique_ptr<Model> model = LoadWide("diffllama", 64, Device::kCuda);
    const auto kernels = [&](int num_decodes, int chunk) {
      KvCache kv = model
                       ->MakeUniformKvCache(KvFormat::Of(model->config().attention, cuda::kPageSize,
                                                         DType::kBFloat16),
                                            {kDecodes + kChunk})
                       .value();
      std::vector<int32_t> pages(kDecodes + kChunk);
      std::iota(pages.begin(), pages.end(), 0);
      Batch batch;
      const auto add = [&](int num_tokens, int num_prompt_tokens) {
        const auto first = static_cast<int>(batch.tokens.size());
        batch.sequences.push_back({.first_row = first,
                                   .num_tokens = num_tokens,
                                   .position = 0,
                                   .pages = &pages[batch.sequences.size()]});
        batch.num_prompt_tokens.push_back(num_prompt_tokens);
        for (int i = 0; i < num_tokens; ++i) batch.tokens.push_back(7 + first + i);
        batch.logit_rows.push_back(first + num_tokens - 1);
        batch.sample_rows.push_back({.kind = SampleKind::kGreedy});
      };
      for (int i = 0; i < num_decodes; ++i) add(1, 0);
      if (chunk > 0) add(chunk, chunk);
      shim::kernels_run = 0;
      EXPECT_TRUE(testing::IsOk(model->Forward(batch, kv)));
      EXPECT_TRUE(testing::IsOk(model->Collect().status()));
      return shim::kernels_run;
    };
    // Attention of decodes has its own kernel per layer. Where a token's bits depend on nothing
    // else, generated rows have four products of their own per layer.
    const int more_per_layer = batch_invariant ? 1 + 4 : 1;
    EXPECT_EQ(kernels(kDecodes, kChunk), kernels(0, kChunk) + 2 * more_per_layer);
  }
}

// In a step: the embedding, the last norm, logits and draws. In each of two
// layers: q, k and v; attention; its output; gate and up; down. More than eight tokens have norms
// of their own, and pages of codes a kernel that writes them.
TEST_F(CudaWideHeadsTest, DecodeHasFiveKernelsPerLayer) {
  const std::unique_ptr<Model> model = LoadWide("diffllama", 64, Device::kCuda);
  const auto kernels = [&](int num_sequences, DType pages = DType::kBFloat16) {
    shim::kernels_run = 0;
    Decode(*model, num_sequences, pages);
    return shim::kernels_run;
  };
  // Logits computes them again.
  EXPECT_EQ(kernels(1), 4 + 2 * 5 + 1);
  EXPECT_EQ(kernels(8), 4 + 2 * 5 + 1);
  EXPECT_EQ(kernels(12), 4 + 2 * 7 + 1);
  EXPECT_EQ(kernels(1, DType::kInt8), 4 + 2 * 6 + 1);
}

// With memory for 4 pages, two of three prompts with 2 pages each are computed at once, and one
// after them.
TEST_F(CudaWideHeadsTest, LittleMemoryForWidenedPagesChangesNoBit) {
  for (const DType pages : {DType::kInt8, DType::kInt4}) {
    const auto run = [&](size_t widened_bytes_max, int64_t* kernels) {
      limits_.widened_bytes_max = widened_bytes_max;
      const std::unique_ptr<Model> model = LoadWide("diffllama", 64, Device::kCuda);
      KvCache kv = model
                       ->MakeUniformKvCache(
                           KvFormat::Of(model->config().attention, cuda::kPageSize, pages), {8})
                       .value();
      const int32_t tables[] = {3, 1, 0, 5, 7, 2, 4};
      Batch batch;
      for (int s = 0; s < 4; ++s) {
        const int num_tokens = s == 3 ? 1 : 70;
        batch.sequences.push_back(
            {static_cast<int>(batch.tokens.size()), num_tokens, 0, &tables[2 * s]});
        for (int i = 0; i < num_tokens; ++i) batch.tokens.push_back((11 * s + 5 * i) % 61);
        batch.num_prompt_tokens.push_back(s == 3 ? 0 : num_tokens);
        batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()) - 1);
        batch.sample_rows.push_back({.kind = SampleKind::kGreedy});
      }
      shim::kernels_run = 0;
      EXPECT_TRUE(testing::IsOk(model->Forward(batch, kv)));
      EXPECT_TRUE(testing::IsOk(model->Collect().status()));
      *kernels = shim::kernels_run;
      const std::span<const float> logits = model->Logits(0, 4).value();
      return std::vector<float>(logits.begin(), logits.end());
    };
    int64_t with_little = 0, with_enough = 0;
    EXPECT_EQ(run(1, &with_little), run(size_t{64} << 20, &with_enough));
    EXPECT_EQ(with_little, with_enough + 2 * 2);  // layers, each with four kernels instead of two
  }
}

// The product that reads its result computes PolyNorm of up to two tokens.
TEST_F(CudaDecoderTest, DecodeWithPolyNormHasFiveKernelsPerLayer) {
  const std::unique_ptr<Model> model = Load(ReadGoldenCase("motif_gda_ratio4_bf16").value());
  ASSERT_NE(model, nullptr);
  for (const auto& [num_sequences, per_layer] : {std::pair{1, 5}, {2, 5}, {3, 6}}) {
    shim::kernels_run = 0;
    Decode(*model, num_sequences);
    EXPECT_EQ(shim::kernels_run, 5 + model->config().num_layers * per_layer) << num_sequences;
  }
}
#endif

TEST_F(CudaWideHeadsTest, AgreeWithTheCpu) {
  for (const char* family : {"diffllama", "diff_transformer_v2", "llama"}) {
    for (int head_dim : {32, 48, 64, 80, 112, 128, 256}) {
      const std::unique_ptr<Model> on_cpu = LoadWide(family, head_dim, Device::kCpu);
      ASSERT_NE(on_cpu, nullptr);
      const std::vector<float> expected = LogitsOf(*on_cpu, Device::kCpu, 40);
      for (bool batch_invariant : {true, false}) {
        batch_invariant_ = batch_invariant;
        const std::unique_ptr<Model> model = LoadWide(family, head_dim, Device::kCuda);
        ASSERT_NE(model, nullptr);
        const float distance = Distance(expected, LogitsOf(*model, Device::kCuda, 40));
        EXPECT_LE(distance, 0.02f) << family << " head_dim " << head_dim;
        EXPECT_GT(distance, 0.0f) << "one computed both";
      }
    }
  }
}

// On Hopper, prompts read codes as bfloat16, and bfloat16 pages as they lie. Compared with the
// CPU's float32, some codes of bfloat16 activations differ by one.
TEST_F(CudaWideHeadsTest, LayersMayDifferInTheirPages) {
  for (int head_dim : {64, 128}) {
    const std::unique_ptr<Model> on_cpu = LoadWide("diffllama", head_dim, Device::kCpu),
                                 model = LoadWide("diffllama", head_dim, Device::kCuda);
    ASSERT_TRUE(on_cpu != nullptr && model != nullptr);
    const auto run = [&](DType pages, const std::vector<size_t>& skipped, size_t chunk = 72) {
      return LogitsOf(*model, Device::kCuda, chunk, pages, skipped);
    };
    EXPECT_EQ(run(DType::kInt4, {0, 1}), run(DType::kBFloat16, {}));
    for (const auto& [pages, far] : {std::pair{DType::kInt8, 0.02f}, {DType::kInt4, 0.05f}}) {
      for (size_t skipped : {0, 1}) {
        const std::vector<float> mixed = run(pages, {skipped});
        EXPECT_EQ(run(pages, {skipped}, 7), mixed) << "chunks changed bits";
        EXPECT_NE(run(pages, {}), mixed);
        EXPECT_LE(Distance(LogitsOf(*on_cpu, Device::kCpu, 72, pages, {skipped}), mixed), far)
            << NameOf(pages) << " but of layer " << skipped << ", head_dim " << head_dim;
      }
    }
  }
}

// Activations are bfloat16 here and float32 on the CPU, so some codes differ by one.
TEST_P(CudaDecoderModesTest, QuantisedLogitsAreNearerToTheCpusThanToUnquantisedOnes) {
  const auto distance = [](const GoldenRun& a, const GoldenRun& b) {
    double squares = 0;
    for (size_t i = 0; i < a.logits.size(); ++i)
      squares += std::pow(double{a.logits[i]} - double{b.logits[i]}, 2);
    return squares;
  };
  for (const char* name : {"llama_mha_tied_bf16", "motif_gda_ratio4_bf16", "diff_mha_tied"}) {
    const GoldenCase golden = ReadGoldenCase(name).value();
    const auto run = [&](LogitQuant logits, Device device) {
      const std::unique_ptr<Model> model = Load(golden, logits, device);
      const int page_size = device == Device::kCpu ? kGoldenPageSize : cuda::kPageSize;
      return GoldenRunner(*model, golden.prompt.size(), page_size)
          .Chunks(golden.prompt, golden.prompt.size());
    };
    const GoldenRun unquantised = run({}, Device::kCpu);
    for (LogitScale scale : kLogitScales) {
      const GoldenRun mine = run({4, scale}, Device::kCuda);
      EXPECT_LT(distance(mine, run({4, scale}, Device::kCpu)), distance(mine, unquantised))
          << name << " " << NameOf(scale);
    }
  }
}

TEST_F(CudaDecoderTest, ModelForOneSequenceLoads) {
  ModelOptions options = OptionsOf(ReadGoldenCase("llama_mha_tied_bf16").value());
  options.limits.num_sequences = 1;
  options.limits.num_tokens = 1;
  EXPECT_TRUE(testing::IsOk(Model::Load(options, pool_).status()));
}

// The prompt in one chunk, in small chunks, one by one; after a preemption; after a prefix hit.
// Which tokens count as generated stays the same.
TEST_F(CudaDecoderTest, EveryScheduleGivesTheSameBits) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "takes minutes with AddressSanitizer; the engine's tests watch the same code";
#endif
  const GoldenCase golden = ReadGoldenCase("motif_gda_ratio4_bf16").value();
  struct Form {
    LogitQuant logits;
    DType pages;
    std::vector<size_t> skipped_layers;
  };
  const Form forms[] = {{{}, DType::kBFloat16, {}},
                        {{4, LogitScale::kRow}, DType::kBFloat16, {}},
                        {{}, DType::kInt8KInt4V, {}},
                        {{}, DType::kInt4, {0}}};
  for (const auto& [logits, pages, skipped_layers] : forms) {
    const std::unique_ptr<Model> model = Load(golden, logits);
    ASSERT_NE(model, nullptr);
    std::vector<int32_t> tokens = golden.AllTokens();
    tokens.resize(102);
    GoldenRunner runner(*model, tokens.size(), cuda::kPageSize, pages, skipped_layers);
    runner.GenerateFrom(90);
    const GoldenRun whole = runner.Run(GoldenSchedule::kOneChunk, tokens);
    for (GoldenSchedule schedule : kGoldenSchedules) {
      const GoldenRun run = runner.Run(schedule, tokens);
      const auto same_rows = whole.logits.begin() +
                             static_cast<long>(run.first_row * static_cast<size_t>(golden.vocab));
      EXPECT_TRUE(std::equal(run.logits.begin(), run.logits.end(), same_rows))
          << NameOf(schedule) << ", pages of " << NameOf(pages);
    }
  }
}

// Generated rows of several sequences, with room for the partial results of one row: every row is
// its own pass.
TEST_F(CudaDecoderTest, StepInManyPassesHasTheBitsOfOnePass) {
  const GoldenCase golden = ReadGoldenCase("diff_mha_tied").value();
  const auto logits_and_draws = [&](size_t partial_bytes) {
    ModelOptions options = OptionsOf(golden);
    options.limits.attention_partial_bytes_max = partial_bytes;
    const std::unique_ptr<Model> model = std::move(Model::Load(options, pool_)).value();
    KvCache kv = model
                     ->MakeUniformKvCache(
                         KvFormat::Of(model->config().attention, 64, DType::kBFloat16), {6})
                     .value();
    const int32_t pages[] = {4, 1, 0, 5, 2, 3};
    Batch batch;
    for (int s = 0; s < 3; ++s) {
      batch.sequences.push_back({static_cast<int>(batch.tokens.size()), 70, 0, &pages[2 * s]});
      for (int i = 0; i < 70; ++i) batch.tokens.push_back((11 * s + 5 * i) % golden.vocab);
      batch.num_prompt_tokens.push_back(20 * s);  // the first sequence has none
      batch.logit_rows.insert(batch.logit_rows.end(), {70 * s + 3, 70 * s + 69});
      batch.sample_rows.resize(
          batch.logit_rows.size(),
          {.kind = SampleKind::kDraw, .uniform = uint64_t{0x123456789abcdef} << s});
    }
    EXPECT_TRUE(testing::IsOk(model->Forward(batch, kv)));
    const std::vector<SampledToken> rows = model->Collect().value();
    const std::span<const float> found = model->Logits(0, 6).value();
    std::vector<float> all(found.begin(), found.end());
    for (const SampledToken& row : rows) all.push_back(static_cast<float>(row.token));
    return all;
  };
  EXPECT_EQ(logits_and_draws(1), logits_and_draws(size_t{256} << 20));
}

TEST_F(CudaDecoderTest, ModelWithoutKernelsIsRefusedWithItsShape) {
  ModelOptions options = OptionsOf(ReadGoldenCase("diff_head_dim_linear").value());
  EXPECT_THAT(InspectModel(options).status().message(),
              ::testing::HasSubstr("intermediate_size is 51; allowed: a multiple of 8"));
  options = OptionsOf(ReadGoldenCase("diff_gqa8").value());
  EXPECT_THAT(
      InspectModel(options).status().message(),
      ::testing::HasSubstr("head_dim 8, v_dim 16, K maps 2; allowed: head_dim 16 to 128 in steps"));
  options = OptionsOf(ReadGoldenCase("phi4flash_as_released_bf16").value());
  EXPECT_THAT(
      InspectModel(options).status().message(),
      ::testing::HasSubstr("head_dim 8, v_dim 16, K maps 2; allowed: head_dim 16 to 128 in steps"));
  options.weight_format = WeightFormat::kFloat32;
  EXPECT_EQ(InspectModel(options).status().message(),
            "--dtype is float32 with --device cuda; allowed: auto, bfloat16");
}

TEST_F(CudaDecoderTest, PagesThatDoNotFitAreRefusedWithTheNumbers) {
  const std::unique_ptr<Model> model = Load(ReadGoldenCase("llama_mha_tied_bf16").value());
  const auto kv = model->MakeUniformKvCache(
      KvFormat::Of(model->config().attention, 64, DType::kBFloat16), {1 << 26});
  ASSERT_FALSE(kv.ok());
  EXPECT_EQ(kv.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(kv.status().message(), ::testing::HasSubstr("free on the device"));
}

}  // namespace
}  // namespace diffserve
