// SPDX-License-Identifier: Apache-2.0
// Packed directories (packed_format.h): loading one gives the bits of quantising the original at
// load, and a mismatch gives a one-line error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "kernels/ops/weight_packer.h"
#include "models/convert/convert.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/models/damaged_json.h"
#include "tests/testing/models/golden_case.h"
#include "tests/testing/models/load_outcome.h"
#include "tests/testing/models/short_prompt.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class PackedTest : public ::testing::Test {
 protected:
  // Every file is synced to disk, which takes no time here.
  static void SetUpTestSuite() {
    in_memory_ = fs::is_directory("/dev/shm") && std::getenv("TMPDIR") == nullptr;
    if (in_memory_) setenv("TMPDIR", "/dev/shm", 1);
  }
  static void TearDownTestSuite() {
    if (in_memory_) unsetenv("TMPDIR");
  }

  fs::path result() const { return directory_.path() / "packed"; }
  fs::path source() const { return directory_.path() / "source"; }

  ConvertOptions OptionsFor(const fs::path& from, WeightFormat format, CpuIsa isa) const {
    ConvertOptions options;
    options.source_dir = from;
    options.output_dir = result();
    options.quantization = format;
    options.isa = isa;
    return options;
  }
  ConvertReport Pack(const ConvertOptions& options) {
    fs::remove_all(result());
    const Result<ConvertReport> report = ConvertCheckpoint(options, pool_);
    EXPECT_TRUE(report.ok()) << options.source_dir << ": " << report.status().message();
    return report.ok() ? *report : ConvertReport();
  }
  // A directory of a tiny model, in result().
  ConvertReport PackTiny(WeightFormat format, CpuIsa isa = testing::EightLanes(),
                         const TinyCheckpointOptions& tiny = {}) {
    WriteTiny(tiny);
    return Pack(OptionsFor(source(), format, isa));
  }
  void WriteTiny(const TinyCheckpointOptions& tiny = {}) const {
    fs::create_directories(source());
    WriteFile(source() / "config.json", TinyConfigJson(tiny));
    WriteFile(source() / "model.safetensors", SafetensorsBytes(TinyTensors(tiny)));
  }

  static ModelOptions LoadOptions(const fs::path& dir, CpuIsa isa = testing::EightLanes()) {
    ModelOptions options;
    options.model_dir = dir;
    options.isa = isa;
    return options;
  }
  std::vector<float> Logits(const ModelOptions& options) {
    return ShortPromptLogits(options, pool_);
  }
  // The same for inspecting and for loading.
  std::string Refusal(const ModelOptions& options) {
    const Result<ModelSummary> summary = InspectModel(options);
    const Result<std::unique_ptr<Model>> model = Model::Load(options, pool_);
    EXPECT_FALSE(summary.ok());
    EXPECT_FALSE(model.ok());
    EXPECT_EQ(summary.status().message(), model.status().message());
    return model.status().message();
  }

  static inline bool in_memory_ = false;
  TemporaryDirectory directory_;
  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
};

class PackedGoldenTest : public PackedTest, public ::testing::WithParamInterface<std::string> {};

// All families: with lambda_proj, biases, tied and separate output matrices, shards, every dtype.
TEST_P(PackedGoldenTest, HasTheBitsAndSizesOfQuantizingTheOriginalAtEveryLevel) {
  const fs::path golden = GoldenCasesDir() + "/" + GetParam();
  for (WeightFormat format : kQuantizedFormats) {
    for (CpuIsa written_by : testing::LevelsOfEachWidth()) {
      const int columns = cpu::PanelColumns(written_by);
      ConvertOptions options = OptionsFor(golden, format, written_by);
      options.max_shard_bytes = 10'000;
      const ConvertReport report = Pack(options);
      EXPECT_GT(report.num_files, 1u);
      for (CpuIsa isa : testing::KernelLevels()) {
        if (cpu::PanelColumns(isa) != columns) continue;
        ModelOptions original = LoadOptions(golden, isa);
        original.linear_format = format;
        const std::vector<float> expected = Logits(original);
        ASSERT_FALSE(expected.empty());
        EXPECT_TRUE(testing::SameBits(Logits(LoadOptions(result(), isa)), expected))
            << NameOf(format) << " " << NameOf(isa);
        const ModelSummary was = InspectModel(original).value();
        const ModelSummary is = InspectModel(LoadOptions(result(), isa)).value();
        EXPECT_EQ(is.linear_format, format);
        EXPECT_EQ(is.weight_format, was.weight_format);
        EXPECT_EQ(is.num_parameters, was.num_parameters);
        EXPECT_EQ(is.num_parameters, report.num_parameters);
        EXPECT_EQ(is.weight_bytes, was.weight_bytes);
        EXPECT_EQ(is.memory_bytes, was.memory_bytes);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PackedGoldenTest, ::testing::ValuesIn(GoldenCaseNames()),
                         [](const auto& info) { return info.param; });

TEST_F(PackedTest, EachDTypeHasTheBitsOfServingTheOriginalInIt) {
  for (bool tied : {false, true}) {
    WriteTiny({.tie_word_embeddings = tied, .config_changes = {}});
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      ConvertOptions options = OptionsFor(source(), WeightFormat::kInt4, testing::EightLanes());
      options.dtype = dtype;
      Pack(options);
      ModelOptions original = LoadOptions(source());
      original.weight_format = WeightFormatOf(dtype);
      original.linear_format = WeightFormat::kInt4;
      ModelOptions packed = LoadOptions(result());
      EXPECT_TRUE(testing::SameBits(Logits(packed), Logits(original))) << NameOf(dtype);
      packed.weight_format = original.weight_format;
      packed.linear_format = original.linear_format;
      EXPECT_TRUE(testing::SameBits(Logits(packed), Logits(original))) << NameOf(dtype);
    }
  }
}

TEST_F(PackedTest, NumberOfThreadsChangesNoByte) {
  PackTiny(WeightFormat::kInt8);
  const std::vector<float> expected = Logits(LoadOptions(result()));
  ThreadPool five({.num_threads = 5, .pin = false, .spin_us = 0});
  EXPECT_TRUE(Model::Load(LoadOptions(result()), five).ok());
  EXPECT_TRUE(testing::SameBits(Logits(LoadOptions(result())), expected));
}

TEST_F(PackedTest, FilesHaveTheDocumentedFormat) {
  const ConvertReport report = PackTiny(WeightFormat::kInt8);
  EXPECT_THAT(report.packed_for, HasSubstr(NameOf(testing::EightLanes())));
  EXPECT_THAT(FileBytes(result() / "config.json"),
              HasSubstr("\"quantization_config\": {\"quant_method\": \"diffserve\", "
                        "\"version\": 1, \"format\": \"int8\", \"group_size\": 64, "
                        "\"panel_columns\": 16}"));
  const auto file = SafetensorsFile::Open(result() / "model.safetensors");
  ASSERT_TRUE(file.ok());
  std::string layer, outer;
  for (const auto& [name, entry] : (*file)->header()) {
    const std::string line = name + " " + entry.dtype_name + " " +
                             TensorView{.shape = entry.shape}.ShapeString() + "\n";
    if (name.starts_with("model.layers.0.")) layer += line.substr(15);
    if (!name.starts_with("model.layers.")) outer += line;
  }
  EXPECT_EQ(outer,
            "lm_head.panels U8 [8, 1024]\n"
            "lm_head.scale F32 [128]\n"
            "model.embed_tokens.weight F32 [128, 32]\n"
            "model.norm.weight F32 [32]\n");
  EXPECT_EQ(layer,
            "input_layernorm.weight F32 [32]\n"
            "mlp.down_proj.panels U8 [2, 1024]\n"
            "mlp.down_proj.scale F32 [32]\n"
            "mlp.gate_proj+up_proj.panels U8 [6, 1024]\n"
            "mlp.gate_proj+up_proj.scale F32 [96]\n"
            "post_attention_layernorm.weight F32 [32]\n"
            "self_attn.lambda_k1 F32 [8]\n"
            "self_attn.lambda_k2 F32 [8]\n"
            "self_attn.lambda_q1 F32 [8]\n"
            "self_attn.lambda_q2 F32 [8]\n"
            "self_attn.o_proj.panels U8 [2, 1024]\n"
            "self_attn.o_proj.scale F32 [32]\n"
            "self_attn.q_proj+k_proj+v_proj.panels U8 [4, 1024]\n"
            "self_attn.q_proj+k_proj+v_proj.scale F32 [64]\n");
}

TEST_F(PackedTest, OptionsThatNeedAnotherConversionAreRefused) {
  PackTiny(WeightFormat::kInt8);
  const std::string where = (result() / "config.json: quantization_config: ").string();
  ModelOptions options = LoadOptions(result());
  options.linear_format = WeightFormat::kInt4;
  EXPECT_EQ(Refusal(options), where +
                                  "is packed in int8, and --quantization is int4; allowed: int8, "
                                  "or not to give it");
  options = LoadOptions(result());
  options.weight_format = WeightFormat::kBFloat16;
  EXPECT_EQ(Refusal(options),
            where +
                "is packed with float32 for the rest, and --dtype is bfloat16; allowed: auto, "
                "float32");
  if (testing::LevelsOfEachWidth().size() == 1) return;
  EXPECT_EQ(Refusal(LoadOptions(result(), CpuIsa::kAvx512)),
            where +
                "panels of 16 columns, and --cpu-isa is avx512; allowed: plain, avx2, or convert "
                "the original with --cpu-isa avx512");
  PackTiny(WeightFormat::kInt4, testing::LevelsOfEachWidth().back());
  EXPECT_EQ(Refusal(LoadOptions(result())),
            where +
                "panels of 32 columns, and --cpu-isa is avx2; allowed: avx512, avx512_vnni, "
                "avx512_bf16, or convert the original with --cpu-isa avx2");
}

TEST_F(PackedTest, ConfigurationOfAnotherKindIsRefused) {
  const auto packed = [](const std::string& members) {
    return "{\"quant_method\": \"diffserve\", \"version\": " + members + "}";
  };
  const std::pair<std::string, const char*> refusals[] = {
      {"\"int8\"", " is \"int8\"; allowed: an object"},
      {"{\"quant_method\": \"gptq\"}", " is set: quantised weights cannot be served"},
      {"{\"quant_method\": 7}", " is set: quantised weights cannot be served"},
      {packed("2, \"format\": \"int8\""), ".version is 2; allowed: 1: convert the original again"},
      {packed("1"), ".format is missing"},
      {packed("1, \"format\": \"int5\""), ".format is \"int5\"; allowed: int8 or int4"},
      {packed("1, \"format\": \"int8\", \"group_size\": 32"), ".group_size is 32; allowed: 64"},
      {packed("1, \"format\": \"int8\", \"group_size\": 64, \"panel_columns\": 8"),
       kBaseCpuIsa == CpuIsa::kNeon ? ".panel_columns is 8; allowed: 16"
                                    : ".panel_columns is 8; allowed: 16 or 32"}};
  for (const auto& [value, line] : refusals) {
    WriteTiny({.config_changes = {{"quantization_config", value}}});
    EXPECT_EQ(Refusal(LoadOptions(source())),
              (source() / "config.json: quantization_config").string() + line);
  }
}

TEST_F(PackedTest, DummyWeightsAreQuantizedAsTheDirectoryIs) {
  PackTiny(WeightFormat::kInt8, testing::LevelsOfEachWidth().back());
  ModelOptions packed = LoadOptions(result()), original = LoadOptions(source());
  packed.dummy_weights = original.dummy_weights = true;
  original.linear_format = WeightFormat::kInt8;
  EXPECT_TRUE(testing::SameBits(Logits(packed), Logits(original)));
}

TEST_F(PackedTest, PackedDirectoryIsNotConvertedAgain) {
  PackTiny(WeightFormat::kInt8);
  fs::rename(result(), directory_.path() / "first");
  const Result<ConvertReport> report = ConvertCheckpoint(
      OptionsFor(directory_.path() / "first", WeightFormat::kInt4, testing::EightLanes()), pool_);
  EXPECT_THAT(report.status().message(),
              EndsWith("first/config.json: quantization_config: is packed already; allowed: the "
                       "original"));
  EXPECT_FALSE(fs::exists(result()));
}

TEST_F(PackedTest, SourceWithAMissingTensorOrANanIsRefusedByName) {
  WriteTiny();
  const auto refusal = [&](const std::vector<FileTensor>& tensors) {
    WriteFile(source() / "model.safetensors", SafetensorsBytes(tensors));
    const Result<ConvertReport> report = ConvertCheckpoint(
        OptionsFor(source(), WeightFormat::kInt8, testing::EightLanes()), pool_);
    EXPECT_FALSE(report.ok());
    EXPECT_FALSE(fs::exists(result()));
    return report.status().message();
  };
  std::vector<FileTensor> tensors = TinyTensors({});
  const auto up = std::ranges::find(tensors, "model.layers.1.mlp.up_proj.weight",
                                    &FileTensor::name);
  const float infinite = HUGE_VALF;
  std::memcpy(up->bytes.data() + 4 * 33, &infinite, sizeof(infinite));
  EXPECT_THAT(refusal(tensors), EndsWith("model.safetensors: tensor "
                                         "model.layers.1.mlp.up_proj.weight: element [1, 1] is "
                                         "inf; allowed: finite numbers, which int8 holds"));
  up->shape = {32, 48};
  EXPECT_THAT(refusal(tensors), EndsWith("model.safetensors: tensor "
                                         "model.layers.1.mlp.up_proj.weight has shape [32, 48]; "
                                         "allowed: [48, 32] from config.json"));
  tensors.erase(up);
  EXPECT_THAT(refusal(tensors), EndsWith("source: tensor model.layers.1.mlp.up_proj.weight is "
                                         "missing; allowed: shape [48, 32]"));
}

// Overwrites bytes of a tensor's data in the one file of result().
void Overwrite(const fs::path& path, const std::string& tensor, size_t at, std::string_view bytes) {
  std::string file = FileBytes(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const SafetensorsHeader header = SafetensorsFile::ParseHeader(file, file.size(), "f").value();
  file.replace(sizeof(length) + length + header.at(tensor).begin + at, bytes.size(), bytes);
  WriteFile(path, file);
}

TEST_F(PackedTest, CodesAndScalesThatNoPackerWritesAreRefusedByName) {
  const fs::path file = result() / "model.safetensors";
  const auto line = [&] { return Model::Load(LoadOptions(result()), pool_).status().message(); };
  PackTiny(WeightFormat::kInt8);
  Overwrite(file, "model.layers.1.mlp.gate_proj+up_proj.panels", 3 * 1024 + 5, std::string(1, 0));
  EXPECT_EQ(line(), file.string() +
                        ": tensor model.layers.1.mlp.gate_proj+up_proj.panels: panel 3 has a code "
                        "0; allowed: 1 to 255");
  PackTiny(WeightFormat::kInt8);
  const float negative = -1;
  Overwrite(file, "lm_head.scale", 4 * 100, {reinterpret_cast<const char*>(&negative), 4});
  EXPECT_EQ(line(), file.string() +
                        ": tensor lm_head.scale: element [100] is -1.000000; allowed: a finite "
                        "number, 0 or more");
  PackTiny(WeightFormat::kInt4);
  Overwrite(file, "lm_head.panels", 2 * 544 + 512 + 2 * 15, std::string("\x00\xfc", 2));
  EXPECT_EQ(line(), file.string() +
                        ": tensor lm_head.panels: panel 2 has a scale that is not finite; "
                        "allowed: a finite number");
  PackTiny(WeightFormat::kInt8);
  const float infinite = HUGE_VALF;
  Overwrite(file, "model.embed_tokens.weight", 4 * 3,
            {reinterpret_cast<const char*>(&infinite), 4});
  EXPECT_EQ(line(), file.string() +
                        ": tensor model.embed_tokens.weight: element [0, 3] is inf; "
                        "allowed: finite numbers; 1 of 4096 are not");
}

TEST_F(PackedTest, FileOfAnotherFormatOrWidthIsRefused) {
  PackTiny(WeightFormat::kInt8);
  const std::string int8 = FileBytes(result() / "model.safetensors");
  PackTiny(WeightFormat::kInt8, testing::LevelsOfEachWidth().back());
  const std::string wide = FileBytes(result() / "model.safetensors");
  PackTiny(WeightFormat::kInt4);
  for (const std::string& other : {int8, wide, FileBytes(source() / "model.safetensors")}) {
    WriteFile(result() / "model.safetensors", other);
    EXPECT_THAT(Refusal(LoadOptions(result())), HasSubstr("model.safetensors: tensor "));
  }
}

class DamagedPackedTest : public PackedTest, public ::testing::WithParamInterface<WeightFormat> {
 protected:
  void TryAll(DamagedCopy& copy, std::vector<Damage> damages) {
    for (Damage& damage : damages) {
      // A code or a scale that no packer writes is refused; all other bytes are weights.
      if (damage.expected == Expected::kLoaded) damage.expected = Expected::kEither;
      damage.apply(copy);
      const LoadOutcome outcome = LoadAndAnswer(copy.dir(), pool_);
      EXPECT_EQ(ProblemOf(outcome, damage, copy.dir()), "") << damage.name;
      outcome.loaded ? ++loaded_ : ++refused_;
      copy.Restore();
    }
    EXPECT_EQ(LoadAndAnswer(copy.dir(), pool_).line, "");
  }
  int loaded_ = 0, refused_ = 0;
};

TEST_P(DamagedPackedTest, IsRefusedByOneLineOrServed) {
  for (bool two_shards : {false, true}) {
    PackTiny(GetParam());
    DamagedCopy copy(result(), two_shards);
    for (const auto& [name, bytes] : copy.good()) {
      TryAll(copy, Cuts(copy, name, 61));
      EXPECT_EQ(loaded_, 0);
    }
    for (const auto& [name, bytes] : copy.good()) TryAll(copy, Flips(copy, name, 200, 12));
    EXPECT_GT(loaded_, 100);
    for (const std::string& name : copy.TensorFiles()) TryAll(copy, LyingHeaders(copy, name));
    TryAll(copy, WrongValues(copy, "config.json"));
    loaded_ = 0;
  }
  EXPECT_GT(refused_, 400);
}

INSTANTIATE_TEST_SUITE_P(Formats, DamagedPackedTest, ::testing::ValuesIn(kQuantizedFormats),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

// ---- LoadProgress.

TEST(LoadProgressTest, ReportsOncePerPeriodAndNotForAQuickLoad) {
  std::chrono::steady_clock::time_point now{};
  std::vector<std::pair<uint64_t, uint64_t>> reports;
  const LoadProgress::Pace pace;
  LoadProgress progress(
      [&](const char* doing, uint64_t done, uint64_t all) {
        EXPECT_STREQ(doing, "loading");
        reports.emplace_back(done, all);
      },
      pace, [&] { return now; });
  progress.Begin("loading", 100);
  progress.Add(30);
  now += pace.first - std::chrono::nanoseconds(1);
  progress.Add(10);
  EXPECT_TRUE(reports.empty());
  now += std::chrono::nanoseconds(1);
  progress.Add(10);
  now += pace.then - std::chrono::nanoseconds(1);
  progress.Add(10);
  now += std::chrono::nanoseconds(1);
  progress.Add(20);
  now += pace.then;
  progress.Add(20);  // that was the last byte: the load is over
  EXPECT_THAT(reports, ::testing::ElementsAre(std::pair(50, 100), std::pair(80, 100)));
}

TEST_F(PackedTest, ConversionReportsEachTensorAndThenItsLoad) {
  WriteTiny();
  for (const bool packs : {false, true}) {
    ConvertOptions options = OptionsFor(source(), WeightFormat::kInt4, testing::EightLanes());
    if (!packs) options.quantization.reset();
    options.dtype = DType::kBFloat16;
    options.pace = {std::chrono::milliseconds(0), std::chrono::milliseconds(0)};
    std::vector<std::string> doing;
    std::vector<uint64_t> left;  // during the conversion
    options.report = [&](const char* what, uint64_t done, uint64_t all) {
      if (doing.empty() || doing.back() != what) doing.emplace_back(what);
      if (doing.size() == 1) left.push_back(all - done);
    };
    const ConvertReport converted = Pack(options);
    EXPECT_THAT(doing, ::testing::ElementsAre("converting", "loading"));
    ASSERT_GT(left.size(), 10u);
    EXPECT_TRUE(std::ranges::is_sorted(left, std::ranges::greater()));
    EXPECT_LT(left.front(), converted.num_bytes);
    EXPECT_LE(left.back(), converted.num_bytes / 4) << "the last tensor";
  }
}

TEST_F(PackedTest, EveryByteOfALoadIsCounted) {
  PackTiny(WeightFormat::kInt8);
  for (const fs::path& dir : {source(), result()}) {
    for (bool dummy : {false, true}) {
      // Each reading of the clock is one period after the previous.
      std::chrono::steady_clock::time_point now{};
      std::vector<uint64_t> done;
      uint64_t all = 0;
      LoadProgress progress(
          [&](const char*, uint64_t done_bytes, uint64_t all_bytes) {
            done.push_back(done_bytes);
            all = all_bytes;
          },
          LoadProgress::Pace(), [&] { return now += LoadProgress::Pace().then; });
      ModelOptions options = LoadOptions(dir);
      options.dummy_weights = dummy;
      options.progress = &progress;
      ASSERT_TRUE(Model::Load(options, pool_).ok());
      ASSERT_GT(done.size(), 10u);
      EXPECT_TRUE(std::ranges::is_sorted(done));
      EXPECT_EQ(done.back(), all - 32 * sizeof(float)) << "all but the final norm";
      if (dummy) continue;
      const auto file = SafetensorsFile::Open(dir / "model.safetensors");
      uint64_t stored = 0;
      for (const auto& [name, entry] : (*file)->header()) stored += entry.end - entry.begin;
      EXPECT_EQ(all, stored);
    }
  }
}

}  // namespace
}  // namespace diffserve
