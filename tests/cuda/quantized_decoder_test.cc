// SPDX-License-Identifier: Apache-2.0
// Models with quantised weights on a device. For int8 and int4 the reference is the CPU's float32
// decoder on the weights that the format keeps, so the difference is that of bfloat16 activations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "models/convert/convert.h"
#include "models/safetensors.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/kept_weights.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/fp8_checkpoint.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

// A copy of a golden case's checkpoint, with its matrices as the format keeps them.
class KeptCheckpoint {
 public:
  KeptCheckpoint(const fs::path& from, WeightFormat format) {
    for (const auto& entry : fs::directory_iterator(from)) {
      if (entry.path().filename().string().starts_with("model")) CopyTensors(entry.path(), format);
    }
    fs::copy_file(from / "config.json", path() / "config.json");
    std::ofstream(path() / "model.safetensors") << SafetensorsBytes(tensors_);
  }
  fs::path path() const { return directory_.path(); }

 private:
  void CopyTensors(const fs::path& path, WeightFormat format) {
    if (path.extension() != ".safetensors") return;
    const auto file = SafetensorsFile::Open(path).value();
    for (const auto& [name, entry] : file->header()) {
      std::vector<std::byte> bytes(entry.end - entry.begin);
      ASSERT_TRUE(file->Read(entry, bytes.data()).ok());
      std::vector<float> values(bytes.size() / SizeOf(entry.dtype));
      CopyToFloat({.data = bytes.data(), .dtype = entry.dtype, .shape = entry.shape}, 0,
                  std::ssize(values), values.data());
      if (entry.shape.size() == 2 && name.ends_with(".weight")) {
        const auto width = static_cast<size_t>(entry.shape[1]);
        for (size_t row = 0; row < values.size(); row += width)
          std::ranges::copy(testing::KeptWeights(format, std::span(values).subspan(row, width)),
                            values.begin() + static_cast<std::ptrdiff_t>(row));
      }
      tensors_.push_back({name, "F32", entry.shape,
                          std::string(reinterpret_cast<const char*>(values.data()),
                                      values.size() * sizeof(float))});
    }
  }

  const TemporaryDirectory directory_;
  std::vector<FileTensor> tensors_;
};

class QuantizedDecoderTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  void SetUp() override {
    if (!testing::KernelsCanRun()) GTEST_SKIP() << cuda::OpenDevice(0).status().message();
    if (!testing::DeviceMultiplies(GetParam()))
      GTEST_SKIP() << cuda::OpenDevice(0)->name << " multiplies no fp8 numbers";
  }

  static ModelOptions OnDevice(const std::string& dir, WeightFormat linear_format) {
    ModelOptions options;
    options.model_dir = dir;
    options.device = Device::kCuda;
    options.linear_format = linear_format;
    options.limits.num_tokens = 320;
    options.limits.num_sequences = 8;
    return options;
  }
  std::unique_ptr<Model> Load(const ModelOptions& options) {
    Result<std::unique_ptr<Model>> model = Model::Load(options, pool_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }
  static GoldenRun RunOf(Model& model, const std::vector<int32_t>& tokens, int page_size) {
    return GoldenRunner(model, tokens.size(), page_size).Chunks(tokens, tokens.size());
  }
  // What a device computes of the case.
  std::vector<float> LogitsOf(const ModelOptions& options, const GoldenCase& golden) {
    const std::unique_ptr<Model> model = Load(options);
    return model == nullptr ? std::vector<float>()
                            : RunOf(*model, golden.prompt, cuda::kPageSize).logits;
  }
  // The first case of each family and its variants that differ in what is multiplied.
  static std::vector<GoldenCase> Cases() {
    std::vector<GoldenCase> cases;
    std::set<std::string> families;
    for (const std::string& name : GoldenCaseNames()) {
      GoldenCase golden = ReadGoldenCase(name).value();
      const bool varies = name.find("bias") != std::string::npos ||
                          name.find("tied") != std::string::npos;
      if (!InspectModel(OnDevice(golden.dir, GetParam())).ok()) continue;
      if (families.insert(golden.family).second || varies) cases.push_back(std::move(golden));
    }
    return cases;
  }

  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
};

TEST_P(QuantizedDecoderTest, EveryFamilyIsWithinTwiceTheReferencesBFloat16Error) {
  std::set<std::string> families;
  for (const GoldenCase& golden : Cases()) {
    const KeptCheckpoint kept(golden.dir, GetParam());
    ModelOptions on_cpu;
    on_cpu.model_dir = kept.path();
    on_cpu.weight_format = WeightFormat::kFloat32;
    on_cpu.isa = SupportedCpuIsas().front();
    const std::unique_ptr<Model> reference = Load(on_cpu);
    ASSERT_NE(reference, nullptr);
    GoldenCase expected = golden;
    expected.logits = RunOf(*reference, golden.prompt, kGoldenPageSize).logits;
    const std::unique_ptr<Model> model = Load(OnDevice(kept.path(), GetParam()));
    ASSERT_NE(model, nullptr);
    const GoldenRun run = RunOf(*model, golden.prompt, cuda::kPageSize);
    EXPECT_LE(GoldenError(expected, run), kGoldenBFloat16Share * golden.bfloat16_error)
        << golden.name;
    families.insert(golden.family);
  }
  EXPECT_EQ(families.size(), 7u);
}

TEST_P(QuantizedDecoderTest, ConvertedDirectoriesGiveTheBitsOfQuantisingAtLoad) {
  for (const char* name :
       {"diff_mha_tied", "phi4flash_as_released_bf16", "motif_gda_ratio4_bf16"}) {
    const GoldenCase golden = ReadGoldenCase(name).value();
    if (!InspectModel(OnDevice(golden.dir, GetParam())).ok()) continue;
    const std::vector<float> expected = LogitsOf(OnDevice(golden.dir, GetParam()), golden);
    for (const CpuIsa isa : SupportedCpuIsas()) {
      const TemporaryDirectory directory;
      ConvertOptions options;
      options.source_dir = golden.dir;
      options.output_dir = directory.path() / "packed";
      options.quantization = GetParam();
      options.isa = isa;
      ASSERT_TRUE(ConvertCheckpoint(options, pool_).ok());
      ModelOptions packed = OnDevice(options.output_dir, GetParam());
      packed.linear_format.reset();
      EXPECT_EQ(LogitsOf(packed, golden), expected) << name << " " << NameOf(isa);
    }
  }
}

TEST_P(QuantizedDecoderTest, PlanCountsTheQuantisedCopyOfATiedTable) {
  const GoldenCase golden = ReadGoldenCase("diff_mha_tied").value();
  ModelOptions with_few_rows = OnDevice(golden.dir, WeightFormat::kBFloat16);
  with_few_rows.batch_invariant = true;  // so that both have memory for few-row products
  const ModelSummary wide = InspectModel(with_few_rows).value();
  const ModelSummary quantized = InspectModel(OnDevice(golden.dir, GetParam())).value();
  EXPECT_LT(quantized.weight_bytes, wide.weight_bytes * 3 / 4);
  EXPECT_GT(quantized.memory_bytes, quantized.weight_bytes);
  EXPECT_EQ(quantized.device_step_bytes - wide.device_step_bytes, size_t{32} << 20);
  const std::unique_ptr<Model> model = Load(OnDevice(golden.dir, GetParam()));
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->weight_bytes(), quantized.weight_bytes);
}

// Activations are quantised as well, so the reference is the authors' code.
class Fp8DecoderTest : public QuantizedDecoderTest {
 protected:
  static GoldenCase Prompt() {
    GoldenCase prompt;
    for (int i = 0; i < 40; ++i) prompt.prompt.push_back(i * 7 % 100 + 3);
    return prompt;
  }
};

TEST_P(Fp8DecoderTest, EveryFamilyIsWithinItsMultipleOfTheBFloat16Error) {
  for (const GoldenCase& golden : Cases()) {
    const std::unique_ptr<Model> model = Load(OnDevice(golden.dir, GetParam()));
    ASSERT_NE(model, nullptr);
    const GoldenRun run = RunOf(*model, golden.prompt, cuda::kPageSize);
    EXPECT_LE(GoldenError(golden, run), kGoldenFp8Share * golden.bfloat16_error) << golden.name;
  }
}

TEST_P(Fp8DecoderTest, StoredCodesGiveTheBitsOfQuantisingAtLoad) {
  TinyCheckpointOptions tiny;
  tiny.hidden_size = 64;
  tiny.tie_word_embeddings = false;
  const TinyCheckpoint plain(tiny);
  tiny.config_changes = {{"quantization_config", testing::kFp8Config}};
  const TinyCheckpoint stored(tiny);
  const auto logits_with = [&](bool lm_head_in_fp8) {
    const auto tensors = testing::ToFp8(TinyTensors(tiny), testing::Fp8Scales::kPerRow,
                                        lm_head_in_fp8);
    stored.Write("model.safetensors", SafetensorsBytes(tensors.stored));
    ModelOptions options = OnDevice(stored.dir(), GetParam());
    options.linear_format.reset();
    return LogitsOf(options, Prompt());
  };
  const std::vector<float> quantised = LogitsOf(OnDevice(plain.dir(), GetParam()), Prompt());
  EXPECT_EQ(logits_with(/*lm_head_in_fp8=*/true), quantised);
  EXPECT_NE(logits_with(/*lm_head_in_fp8=*/false), quantised) << "the projection stays bfloat16";
  const ModelSummary summary = InspectModel(OnDevice(stored.dir(), GetParam())).value();
  EXPECT_GT(summary.weight_bytes,
            InspectModel(OnDevice(plain.dir(), GetParam())).value().weight_bytes);
}

TEST_P(Fp8DecoderTest, CpuAndOlderDevicesRefuseIt) {
  ModelOptions options = OnDevice(ReadGoldenCase("diff_mha_tied").value().dir, GetParam());
  options.device = Device::kCpu;
  EXPECT_EQ(InspectModel(options).status().message(),
            "--quantization is fp8 with --device cpu; allowed: none, int8, int4");
#if defined(DIFFSERVE_CUDA_ON_CPU)
  options.device = Device::kCuda;
  shim::simulated_device.compute_capability_major = 8;
  EXPECT_THAT(Model::Load(options, pool_).status().message(),
              ::testing::HasSubstr("multiplies no such numbers; allowed: int8, int4, or a GPU of "
                                   "compute capability 8.9 or more"));
  shim::simulated_device.compute_capability_major = 9;
#endif
}

// Generated tokens take few-row products, prompts cuBLASLt's, however the work is cut.
class QuantizedSchedulesTest : public QuantizedDecoderTest {};

TEST_P(QuantizedSchedulesTest, EveryScheduleGivesTheSameBits) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "takes minutes with AddressSanitizer; the engine's tests watch the same code";
#endif
  const GoldenCase golden = ReadGoldenCase("motif_gda_ratio4_bf16").value();
  ModelOptions options = OnDevice(golden.dir, GetParam());
  options.batch_invariant = true;
  const std::unique_ptr<Model> model = Load(options);
  ASSERT_NE(model, nullptr);
  std::vector<int32_t> tokens = golden.AllTokens();
  tokens.resize(102);
  GoldenRunner runner(*model, tokens.size(), cuda::kPageSize);
  runner.GenerateFrom(90);
  const GoldenRun whole = runner.Run(GoldenSchedule::kOneChunk, tokens);
  for (const GoldenSchedule schedule : kGoldenSchedules) {
    const GoldenRun run = runner.Run(schedule, tokens);
    const auto same_rows = whole.logits.begin() +
                           static_cast<long>(run.first_row * static_cast<size_t>(golden.vocab));
    EXPECT_TRUE(std::equal(run.logits.begin(), run.logits.end(), same_rows)) << NameOf(schedule);
  }
}

std::string NameOfFormat(const ::testing::TestParamInfo<WeightFormat>& format) {
  return std::string(NameOf(format.param));
}
INSTANTIATE_TEST_SUITE_P(Formats, QuantizedDecoderTest, ::testing::ValuesIn(kQuantizedFormats),
                         NameOfFormat);
INSTANTIATE_TEST_SUITE_P(Formats, QuantizedSchedulesTest,
                         ::testing::Values(WeightFormat::kInt8, WeightFormat::kInt4,
                                           WeightFormat::kFp8E4M3),
                         NameOfFormat);
INSTANTIATE_TEST_SUITE_P(Formats, Fp8DecoderTest, ::testing::Values(WeightFormat::kFp8E4M3),
                         NameOfFormat);

}  // namespace
}  // namespace diffserve
