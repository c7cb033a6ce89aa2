// SPDX-License-Identifier: Apache-2.0
// Every golden case (tests/golden/make_golden.py) through Model::Forward with a paged cache,
// against the authors' own code.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

GoldenCase ReadCase(const std::string& name) {
  Result<GoldenCase> golden = ReadGoldenCase(name);
  if (golden.ok()) return std::move(golden).value();
  ADD_FAILURE() << golden.status().message();
  return {};
}

class GoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_FALSE(golden_.logits.empty()); }

  // `format`: of linear layers. If it is quantised, everything else is float32.
  std::unique_ptr<Model> Load(WeightFormat format, CpuIsa isa, LogitQuant logits = {}) {
    return Load(format, isa, logits, pool_);
  }
  std::unique_ptr<Model> Load(WeightFormat format, CpuIsa isa, LogitQuant logits,
                              ThreadPool& pool) {
    ModelOptions options;
    options.model_dir = golden_.dir;
    options.weight_format = IsQuantized(format) ? WeightFormat::kFloat32 : format;
    options.linear_format = format;
    options.isa = isa;
    options.logit_quant = logits;
    Result<std::unique_ptr<Model>> model = Model::Load(options, pool);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(model).value() : nullptr;
  }

  GoldenRun OneChunk(Model& model) {
    return GoldenRunner(model, tokens_.size()).Run(GoldenSchedule::kOneChunk, tokens_);
  }

  // For any chunks of the prompt, and any schedule that filled the cache.
  void ExpectEveryScheduleGivesTheSameBits(Model& model, DType pages) {
    const std::vector<int32_t> tokens(tokens_.begin(), tokens_.begin() + 130);
    const size_t vocab = static_cast<size_t>(golden_.vocab);
    GoldenRunner runner(model, tokens.size(), kGoldenPageSize, pages);
    const std::vector<float> whole = runner.Run(GoldenSchedule::kOneChunk, tokens).logits;
    EXPECT_TRUE(runner.Chunks(tokens, kGoldenPageSize).logits == whole) << "chunks of a page";
    for (GoldenSchedule schedule : kGoldenSchedules) {
      const GoldenRun run = runner.Run(schedule, tokens);
      const auto begin = whole.begin() + static_cast<long>(run.first_row * vocab);
      ASSERT_EQ(run.logits.size(), whole.size() - run.first_row * vocab);
      EXPECT_TRUE(std::equal(run.logits.begin(), run.logits.end(), begin)) << NameOf(schedule);
    }
  }

  GoldenCase golden_ = ReadCase(GetParam());
  // The prompt and the reference's continuation.
  std::vector<int32_t> tokens_ = golden_.AllTokens();
  // Two threads would hand over to each other for longer than these models compute.
  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
};

TEST_P(GoldenTest, Float32LogitsEqualTheReference) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    const auto model = Load(WeightFormat::kFloat32, isa);
    ASSERT_NE(model, nullptr);
    const double error = GoldenError(golden_, OneChunk(*model));
    EXPECT_LE(error, kGoldenFloat32Tolerance) << NameOf(isa);
    RecordProperty(std::string("float32_error_over_tolerance_") + std::string(NameOf(isa)),
                   std::to_string(error / kGoldenFloat32Tolerance));
  }
}

TEST_P(GoldenTest, BFloat16ErrorIsWithinTwiceTheReferences) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    const auto model = Load(WeightFormat::kBFloat16, isa);
    ASSERT_NE(model, nullptr);
    const double error = GoldenError(golden_, OneChunk(*model));
    EXPECT_LE(error, kGoldenBFloat16Share * golden_.bfloat16_error) << NameOf(isa);
    RecordProperty(std::string("bfloat16_error_over_reference_") + std::string(NameOf(isa)),
                   std::to_string(error / golden_.bfloat16_error));
  }
}

TEST_P(GoldenTest, Float16ErrorIsAFractionOfTheReferencesInBFloat16) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    const auto model = Load(WeightFormat::kFloat16, isa);
    ASSERT_NE(model, nullptr);
    const double error = GoldenError(golden_, OneChunk(*model));
    EXPECT_LE(error, kGoldenFloat16Share * golden_.bfloat16_error) << NameOf(isa);
    RecordProperty(std::string("float16_error_over_bfloat16s_") + std::string(NameOf(isa)),
                   std::to_string(error / golden_.bfloat16_error));
  }
}

// The error of quantising these random models, whose heads are 16 wide; all levels have the same
// codes.
TEST_P(GoldenTest, QuantizedErrorIsWithinItsMultipleOfTheBFloat16Error) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    for (const auto& [format, share] : {std::pair(WeightFormat::kInt8, kGoldenInt8Share),
                                        std::pair(WeightFormat::kInt4, kGoldenInt4Share)}) {
      const auto model = Load(format, isa);
      ASSERT_NE(model, nullptr);
      const double error = GoldenError(golden_, OneChunk(*model));
      EXPECT_LE(error, share * golden_.bfloat16_error) << NameOf(isa) << " " << NameOf(format);
      EXPECT_GT(error, kGoldenFloat32Tolerance) << "nothing was quantised";
      RecordProperty(
          std::string(NameOf(format)) + "_error_over_bfloat16_" + std::string(NameOf(isa)),
          std::to_string(error / golden_.bfloat16_error));
    }
  }
}

// float16 pages round an eighth of what bfloat16 pages do, with weights that round nothing.
TEST_P(GoldenTest, Float16PagesAreWithinAQuarterOfTheBFloat16Error) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    const auto model = Load(WeightFormat::kFloat32, isa);
    ASSERT_NE(model, nullptr);
    GoldenRunner runner(*model, tokens_.size(), kGoldenPageSize, DType::kFloat16);
    const double error = GoldenError(golden_, runner.Run(GoldenSchedule::kOneChunk, tokens_));
    EXPECT_LE(error, golden_.bfloat16_error / 4) << NameOf(isa);
    RecordProperty(std::string("float16_pages_error_over_bfloat16_") + std::string(NameOf(isa)),
                   std::to_string(error / golden_.bfloat16_error));
  }
}

// 8-bit codes round about as bfloat16 weights do, in these heads of width 16; 4-bit codes round
// more.
TEST_P(GoldenTest, QuantisedPagesAreWithinTheirMultipleOfTheBFloat16Error) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    const auto model = Load(WeightFormat::kFloat32, isa);
    ASSERT_NE(model, nullptr);
    for (const auto& [pages, share] : kGoldenPagesShares) {
      if (!HasPagesOf(*model, pages)) continue;
      GoldenRunner runner(*model, tokens_.size(), kGoldenPageSize, pages);
      const double error = GoldenError(golden_, runner.Run(GoldenSchedule::kOneChunk, tokens_));
      EXPECT_LE(error, share * golden_.bfloat16_error) << NameOf(isa) << " " << NameOf(pages);
      EXPECT_GT(error, kGoldenFloat32Tolerance) << "nothing was quantised";
      RecordProperty(
          std::string(NameOf(pages)) + "_pages_error_over_bfloat16_" + std::string(NameOf(isa)),
          std::to_string(error / golden_.bfloat16_error));
    }
  }
}

// The reference's continuation is what Model::Forward would have chosen, token by token. The next
// test checks that a row does not depend on being computed singly or in a chunk.
TEST_P(GoldenTest, GreedyContinuationEqualsTheReferences) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    const auto model = Load(WeightFormat::kFloat32, isa);
    ASSERT_NE(model, nullptr);
    const GoldenChoices choices = CompareChoices(golden_, OneChunk(*model));
    EXPECT_EQ(choices.steps(), 256) << NameOf(isa);
    EXPECT_EQ(choices.different, 0) << NameOf(isa);
  }
}

TEST_P(GoldenTest, EveryScheduleGivesTheSameBits) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    for (WeightFormat format : kWeightFormats) {
      SCOPED_TRACE(std::string(NameOf(isa)) + " " + std::string(NameOf(format)));
      const auto model = Load(format, isa);
      ASSERT_NE(model, nullptr);
      ExpectEveryScheduleGivesTheSameBits(*model, model->dtype());
    }
    const auto model = Load(WeightFormat::kBFloat16, isa);
    ASSERT_NE(model, nullptr);
    for (const auto& [pages, _] : kGoldenPagesShares) {
      if (!HasPagesOf(*model, pages)) continue;
      SCOPED_TRACE(std::string(NameOf(isa)) + ", pages of " + std::string(NameOf(pages)));
      ExpectEveryScheduleGivesTheSameBits(*model, pages);
    }
  }
}

TEST_P(GoldenTest, SeveralThreadsGiveTheSameBits) {
  ThreadPool several({.num_threads = 3, .pin = false, .spin_us = 0});
  for (CpuIsa isa : SupportedCpuIsas()) {
    for (WeightFormat format : kWeightFormats) {
      const auto model = Load(format, isa), shared = Load(format, isa, {}, several);
      ASSERT_TRUE(model != nullptr && shared != nullptr);
      EXPECT_TRUE(OneChunk(*shared).logits == OneChunk(*model).logits)
          << NameOf(isa) << " " << NameOf(format);
    }
  }
}

// At the narrowest level and the widest; also over int8 pages.
TEST_P(GoldenTest, EveryScheduleGivesTheSameBitsIfLogitsAreQuantised) {
  const std::vector<CpuIsa> levels = SupportedCpuIsas();
  for (CpuIsa isa : {levels.front(), levels.back()}) {
    for (LogitScale scale : kLogitScales) {
      SCOPED_TRACE(std::string(NameOf(isa)) + " " + std::string(NameOf(scale)));
      const auto model = Load(WeightFormat::kBFloat16, isa, {.bits = 4, .scale = scale});
      ASSERT_NE(model, nullptr);
      ExpectEveryScheduleGivesTheSameBits(
          *model, scale == LogitScale::kRow ? DType::kInt8 : model->dtype());
    }
  }
}

// No logit of these prompts is near a boundary between two codes, so only rounding separates the
// two. Without quantisation, or with another scale, the model is far outside the tolerance.
TEST_P(GoldenTest, LogitsOfFewerBitsEqualTheReference) {
  const auto references = ReadGoldenLogitBits(golden_.name);
  ASSERT_TRUE(references.ok()) << references.status().message();
  double worst = 0;
  for (const GoldenLogitBits& expected : *references) {
    const auto error_of = [&](CpuIsa isa, const LogitQuant& quant) {
      const auto model = Load(WeightFormat::kFloat32, isa, quant);
      GoldenRunner runner(*model, expected.tokens.size());
      return GoldenError(expected, runner.Chunks(expected.tokens, expected.tokens.size()));
    };
    SCOPED_TRACE(std::string(NameOf(expected.quant.scale)) + " " +
                 std::to_string(expected.quant.bits));
    for (CpuIsa isa : SupportedCpuIsas()) {
      const double error = error_of(isa, expected.quant);
      EXPECT_LE(error, kGoldenFloat32Tolerance) << NameOf(isa);
      worst = std::max(worst, error);
    }
    const LogitScale other = expected.quant.scale == LogitScale::kRow ? LogitScale::kAnchored
                                                                      : LogitScale::kRow;
    for (const LogitQuant& wrong : {LogitQuant{}, LogitQuant{expected.quant.bits, other}})
      EXPECT_GT(error_of(testing::EightLanes(), wrong), 5 * kGoldenFloat32Tolerance);
  }
  RecordProperty("logit_bits_error_over_tolerance",
                 std::to_string(worst / kGoldenFloat32Tolerance));
}

// 8-bit steps are small compared with the differences that a softmax sees; 4-bit steps are not.
TEST_P(GoldenTest, FewerBitsOfAttentionLogitsCostMore) {
  for (LogitScale scale : kLogitScales) {
    double errors[2];
    for (int bits : {8, 4}) {
      const auto model = Load(WeightFormat::kFloat32, testing::EightLanes(),
                              {.bits = bits, .scale = scale});
      ASSERT_NE(model, nullptr);
      errors[bits == 4] = GoldenError(golden_, OneChunk(*model));
    }
    EXPECT_GT(errors[0], kGoldenFloat32Tolerance) << "nothing was quantised";
    EXPECT_LT(errors[0], errors[1]) << NameOf(scale);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTest, ::testing::ValuesIn(GoldenCaseNames()),
                         [](const auto& info) { return info.param; });

TEST(GoldenCasesTest, CasesCoverEveryFamily) {
  std::map<std::string, int> found;
  for (const std::string& name : GoldenCaseNames()) {
    const GoldenCase golden = ReadCase(name);
    EXPECT_TRUE(name.starts_with(golden.family + "_")) << name;
    EXPECT_FALSE(golden.reference.empty()) << name;
    ++found[golden.family];
  }
  const std::map<std::string, int> least = {{"diff", 15},     {"llama", 7}, {"unilm_v1", 8},
                                            {"unilm_v2", 5},  {"motif", 4}, {"motif_gda", 5},
                                            {"phi4flash", 10}};
  for (const auto& [family, count] : least) EXPECT_GE(found[family], count) << family;
  EXPECT_EQ(found.size(), least.size());
}

TEST(GoldenCasesTest, LogitsOfFewerBitsCoverEveryScaleInEveryFamily) {
  std::map<std::string, std::set<LogitScale>> found;
  for (const std::string& name : GoldenCaseNames()) {
    const auto references = ReadGoldenLogitBits(name);
    ASSERT_TRUE(references.ok()) << references.status().message();
    for (const GoldenLogitBits& reference : *references)
      found[ReadCase(name).family].insert(reference.quant.scale);
  }
  EXPECT_EQ(found.size(), 7u);
  for (const auto& [family, scales] : found) EXPECT_EQ(scales.size(), 3u) << family;
}

// A case whose config.json has `wrong` instead of `right`.
struct Mistake {
  const char* name;
  const char* right;
  const char* wrong;
};

class MistakeTest : public ::testing::TestWithParam<Mistake> {
 protected:
  Result<std::unique_ptr<Model>> Load() {
    std::filesystem::copy(golden_.dir, directory_.path());
    std::ifstream in(golden_.dir + "/config.json");
    std::string json((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const size_t place = json.find(GetParam().right);
    EXPECT_NE(place, std::string::npos);
    if (place == std::string::npos)
      return InvalidArgument("config.json has no " + std::string(GetParam().right));
    json.replace(place, std::string_view(GetParam().right).size(), GetParam().wrong);
    WriteFile(directory_.path() / "config.json", json);
    ModelOptions options;
    options.model_dir = directory_.path().string();
    options.weight_format = WeightFormat::kFloat32;
    return Model::Load(options, pool_);
  }

  const GoldenCase golden_ = ReadCase(GetParam().name);
  TemporaryDirectory directory_;
  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
};

std::string MistakeName(const ::testing::TestParamInfo<Mistake>& info) {
  return std::to_string(info.index) + "_" + info.param.name;
}

// A golden test must detect this: a misread key of the config is far outside the tolerance.
class KeyMistakeTest : public MistakeTest {};

TEST_P(KeyMistakeTest, IsFarOutsideTheTolerance) {
  auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<int32_t> tokens = golden_.AllTokens();
  const GoldenRun run = GoldenRunner(**model, tokens.size()).Run(GoldenSchedule::kOneChunk, tokens);
  EXPECT_GT(GoldenError(golden_, run), 5 * kGoldenFloat32Tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Keys, KeyMistakeTest,
    ::testing::Values(
        Mistake{"diff_llama3_bf16_tied", "\"llama3\"", "\"default\""},
        Mistake{"diff_llama3_f16_shards", "\"low_freq_factor\": 1.0", "\"low_freq_factor\": 2.0"},
        Mistake{"diff_head_dim_linear", "\"factor\": 4.0", "\"factor\": 3.0"},
        Mistake{"diff_gqa2_bf16", "500000.0", "10000.0"},
        Mistake{"diff_lambda_extremes", "1e-05", "1e-03"},
        Mistake{"llama_gqa_biases_linear", "\"linear\"", "\"default\""},
        Mistake{"diff_yarn_bf16", "\"factor\": 4.0", "\"factor\": 8.0"},
        Mistake{"diff_yarn_mscale", "\"mscale\": 1.4", "\"mscale\": 1.0"},
        Mistake{"diff_yarn_mscale", "\"mscale_all_dim\": 0.7,", ""},
        Mistake{"diff_yarn_no_truncate", "\"truncate\": false,", ""},
        Mistake{"diff_yarn_no_truncate", "\"beta_fast\": 2.0", "\"beta_fast\": 32.0"},
        Mistake{"diff_yarn_no_truncate", "\"beta_slow\": 0.25", "\"beta_slow\": 1.0"},
        Mistake{"diff_yarn_factor_null", "\"factor\": null", "\"factor\": 2.0"},
        Mistake{"llama_yarn_attention_factor", "\"attention_factor\": 1.25,", ""},
        Mistake{"llama_yarn_original_outside", "\"original_max_position_embeddings\": 64,", ""},
        Mistake{"unilm_v1_gqa2_bf16", "640000.0", "10000.0"},
        Mistake{"unilm_v1_mha", "\"hidden_size\"", "\"lambda_init\": 0.8, \"hidden_size\""},
        Mistake{"unilm_v1_lambda_constant", "\"lambda_init\": 0.8", "\"lambda_init\": 0.5"},
        Mistake{"unilm_v1_lambda_constant", "\"lambda_init\": 0.8", "\"lambda_init\": \"exp\""},
        Mistake{"unilm_v1_gqa4_tied", "\"hidden_size\"",
                "\"subln_affine\": false, \"hidden_size\""},
        Mistake{"unilm_v1_gqa4_tied", "\"hidden_size\"", "\"use_subln\": false, \"hidden_size\""},
        Mistake{"unilm_v1_plain_subln", "\"subln_affine\": false", "\"use_subln\": false"},
        Mistake{"unilm_v2_gqa2_bf16", "500000.0", "10000.0"},
        Mistake{"motif_qkv_bias_head_dim", "\"attn_rms_norm_eps\": 0.01",
                "\"attn_rms_norm_eps\": 1e-05"},
        Mistake{"motif_gda_three_noise_one_group", "\"rms_norm_eps\": 1e-06",
                "\"rms_norm_eps\": 1e-03"},
        Mistake{"motif_gda_ratio4_bf16", "1000000.0", "10000.0"},
        Mistake{"phi4flash_float32_d_state_4", "\"layer_norm_eps\": 1e-05",
                "\"layer_norm_eps\": 1e-03"},
        Mistake{"phi4flash_one_pair_dt_rank_3", "\"layer_norm_eps\": 0.001",
                "\"layer_norm_eps\": 1e-05"},
        Mistake{"phi4flash_float32_d_state_4", "\"sliding_window\": 4", "\"sliding_window\": 5"},
        Mistake{"phi4flash_lambda_extremes", "\"sliding_window\": 4", "\"sliding_window\": 3"}),
    MistakeName);

// If a wrong count changes a shape, the checkpoint is not loaded at all.
class HeadCountMistakeTest : public MistakeTest {};

TEST_P(HeadCountMistakeTest, IsRefused) { EXPECT_FALSE(Load().ok()); }

INSTANTIATE_TEST_SUITE_P(
    Keys, HeadCountMistakeTest,
    ::testing::Values(
        Mistake{"motif_gda_ratio4_bf16", "\"num_noise_heads\": 2", "\"num_noise_heads\": 5"},
        Mistake{"motif_gda_ratio4_bf16", "\"num_noise_heads\": 2,", ""},
        Mistake{"motif_gda_ratio3_bias_shards", "\"num_key_value_heads\": 2",
                "\"num_key_value_heads\": 4"},
        Mistake{"unilm_v1_gqa2_bf16", "\"num_attention_heads\": 4", "\"num_attention_heads\": 8"},
        Mistake{"unilm_v1_plain_subln", "\"subln_affine\": false", "\"subln_affine\": true"},
        Mistake{"unilm_v2_gqa2_bf16", "\"num_attention_heads\": 4", "\"num_attention_heads\": 8"},
        Mistake{"phi4flash_float32_d_state_4", "\"num_attention_heads\": 4",
                "\"num_attention_heads\": 2"}),
    MistakeName);

// Several sequences in one step: each row has the same bits as when its sequence runs by itself.
class BatchInvarianceTest : public ::testing::TestWithParam<std::string> {};

TEST_P(BatchInvarianceTest, SequenceIsBitwiseIndependentOfBatch) {
  const GoldenCase golden = ReadCase(GetParam());
  ThreadPool pool({.num_threads = 2, .pin = false, .spin_us = 0});
  for (CpuIsa isa : SupportedCpuIsas()) {
    ModelOptions options;
    options.model_dir = golden.dir;
    options.isa = isa;
    auto loaded = Model::Load(options, pool);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    Model& model = **loaded;
    EXPECT_EQ(model.weight_format(), WeightFormat::kBFloat16);
    const size_t vocab = static_cast<size_t>(model.config().vocab_size);

    // Sequence s has the first lengths[s] tokens of the prompt; all but its last `new_rows` are
    // already in the cache.
    const std::vector<int> lengths = {40, 1, 17, 33, 16};
    const std::vector<int> new_rows = {1, 1, 17, 5, 1};
    const KvFormat format = KvFormat::Of(model.config().attention, kGoldenPageSize, model.dtype());
    const auto num_sequences = static_cast<int>(lengths.size());
    KvCache kv = model
                     .MakeUniformKvCache(
                         format, {.num_pages = 3 * num_sequences, .num_states = num_sequences})
                     .value();
    std::vector<std::vector<int32_t>> pages;
    Batch batch;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int32_t first_page = static_cast<int32_t>(3 * s);
      pages.push_back({first_page, first_page + 2, first_page + 1});
    }
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int cached = lengths[s] - new_rows[s];
      if (cached > 0) {
        ASSERT_TRUE(model
                        .Forward({{golden.prompt.begin(), golden.prompt.begin() + cached},
                                  {{0, cached, 0, pages[s].data()}},
                                  {},
                                  {{0, static_cast<int32_t>(s)}}},
                                 kv)
                        .ok());
      }
      batch.sequences.push_back(
          {static_cast<int>(batch.tokens.size()), new_rows[s], cached, pages[s].data()});
      batch.tokens.insert(batch.tokens.end(), golden.prompt.begin() + cached,
                          golden.prompt.begin() + lengths[s]);
      batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size() - 1));
    }
    ASSERT_TRUE(model.Forward(batch, kv).ok());
    const std::span<const float> logits = model.Logits(0, static_cast<int>(lengths.size())).value();
    const std::vector<float> together(logits.begin(), logits.end());
    for (size_t s = 0; s < lengths.size(); ++s) {
      const std::vector<int32_t> tokens(golden.prompt.begin(), golden.prompt.begin() + lengths[s]);
      const std::vector<float> alone = GoldenRunner(model, 48).Chunks(tokens, tokens.size()).logits;
      const auto batched = together.begin() + static_cast<long>(s * vocab);
      EXPECT_TRUE(std::equal(alone.end() - static_cast<long>(vocab), alone.end(), batched))
          << NameOf(isa) << " sequence " << s;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OneOfEachFamily, BatchInvarianceTest,
                         ::testing::Values("diff_gqa2_bf16", "llama_mha_tied_bf16",
                                           "unilm_v1_gqa2_bf16", "unilm_v2_gqa2_bf16",
                                           "motif_mha_tied_bf16", "motif_gda_ratio4_bf16",
                                           "phi4flash_as_released_bf16"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace diffserve
