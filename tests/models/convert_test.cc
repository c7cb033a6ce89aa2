// SPDX-License-Identifier: Apache-2.0
// `diffserve convert` without its command line: the result has the bits of the source, and a
// refused source leaves nothing behind.
#include "models/convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>

#include "models/load_config.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "tests/testing/kernels/source_directory.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/short_prompt.h"
#include "tests/testing/models/unilm_state_dict.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> FileNames(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

// Tied, with the output matrix stored as well, in a family that has its own name for the final
// norm.
constexpr char kStoredTiedHead[] = "phi4flash_stored_lm_head_shards";

class ConvertTest : public ::testing::Test {
 protected:
  fs::path root() const { return directory_.path(); }
  fs::path source() const { return root() / "source"; }
  fs::path result() const { return root() / "result"; }

  // The converter syncs every file to disk. Memory-backed test folders, where available, avoid the
  // wait.
  static void SetUpTestSuite() {
    in_memory_ = fs::is_directory("/dev/shm") && std::getenv("TMPDIR") == nullptr;
    if (in_memory_) setenv("TMPDIR", "/dev/shm", 1);
  }
  static void TearDownTestSuite() {
    if (in_memory_) unsetenv("TMPDIR");
  }
  void SetUp() override { fs::create_directory(source()); }
  void Write(const std::string& name, std::string_view bytes) const {
    WriteFile(source() / name, bytes);
  }
  void WriteModel(const TinyCheckpointOptions& options = {}) const {
    Write("config.json", TinyConfigJson(options));
    Write("model.safetensors", SafetensorsBytes(TinyTensors(options)));
  }

  Result<ConvertReport> Convert(const fs::path& from, std::optional<DType> dtype = std::nullopt,
                                uint64_t max_shard_bytes = 5'000'000'000) {
    ConvertOptions options;
    options.source_dir = from;
    options.output_dir = result();
    options.dtype = dtype;
    options.max_shard_bytes = max_shard_bytes;
    return ConvertCheckpoint(options, pool_);
  }
  ConvertReport Converted(const fs::path& from, std::optional<DType> dtype = std::nullopt,
                          uint64_t max_shard_bytes = 5'000'000'000) {
    fs::remove_all(result());
    const Result<ConvertReport> report = Convert(from, dtype, max_shard_bytes);
    EXPECT_TRUE(report.ok()) << from << ": " << report.status().message();
    return report.ok() ? *report : ConvertReport();
  }
  // The one-line error; nothing may be left behind.
  std::string Refusal(const fs::path& from, std::optional<DType> dtype = std::nullopt) {
    const std::vector<std::string> before = FileNames(root());
    const Result<ConvertReport> report = Convert(from, dtype);
    EXPECT_FALSE(report.ok());
    EXPECT_EQ(FileNames(root()), before);
    EXPECT_EQ(report.status().message().find('\n'), std::string::npos);
    return report.status().message();
  }

  // Logits of a short prompt; dtype as in Model::Load.
  std::vector<float> Logits(const fs::path& dir, std::optional<DType> dtype = std::nullopt) {
    ModelOptions options;
    options.model_dir = dir;
    if (dtype) options.weight_format = WeightFormatOf(*dtype);
    return ShortPromptLogits(options, pool_);
  }

  static inline bool in_memory_ = false;
  TemporaryDirectory directory_;
  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
};

TEST_F(ConvertTest, EveryGoldenCaseGivesTheSameBitsInEachDType) {
  for (const auto& golden : fs::directory_iterator(SourceDirectory() + "/tests/golden/cases")) {
    const std::string name = golden.path().filename();
    const ConvertReport as_stored = Converted(golden, std::nullopt, 20'000);
    EXPECT_GT(as_stored.num_files, 1u) << name;
    EXPECT_EQ(as_stored.num_renamed, 0) << name;
    EXPECT_EQ(as_stored.dropped.size(), name == kStoredTiedHead ? 1u : 0u) << name;
    EXPECT_TRUE(Logits(result()) == Logits(golden)) << name;
    const Result<ModelConfig> config = LoadModelConfig(golden.path());
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      if (dtype == config->checkpoint_dtype) continue;
      const ConvertReport report = Converted(golden, dtype);
      EXPECT_EQ(report.num_files, 1u);
      // A float16 checkpoint is served in float32 unless float16 is requested.
      const std::optional<DType> served = dtype == DType::kFloat16 ? std::optional(dtype)
                                                                   : std::nullopt;
      EXPECT_TRUE(Logits(result(), served) == Logits(golden, dtype))
          << name << " " << NameOf(dtype);
      EXPECT_THAT(FileBytes(result() / "config.json"),
                  HasSubstr("dtype\": \"" + std::string(NameOf(dtype)) + "\""));
    }
  }
}

TEST_F(ConvertTest, ConvertedDirectoryConvertsToItself) {
  WriteModel();
  Converted(source(), std::nullopt, 9'000);
  fs::rename(result(), root() / "first");
  Converted(root() / "first", std::nullopt, 9'000);
  EXPECT_EQ(FileNames(result()), FileNames(root() / "first"));
  for (const std::string& name : FileNames(result()))
    EXPECT_EQ(FileBytes(result() / name), FileBytes(root() / "first" / name));
}

TEST_F(ConvertTest, UnilmStateDictsGiveTheSameBitsUnderEveryNaming) {
  const Replacements bare = {{"model.layers.", ""}, {"self_attn.", ""}, {"model.", ""}};
  const Replacements like_llama = {{"model.", ""},
                                   {"self_attn", "attention"},
                                   {"q_proj", "wq"},
                                   {"k_proj", "wk"},
                                   {"v_proj", "wv"},
                                   {"out_proj", "wo"},
                                   {"o_proj", "wo"},
                                   {"input_layernorm", "attention_norm"},
                                   {"post_attention_layernorm", "ffn_norm"},
                                   {"mlp.gate_proj", "feed_forward.w1"},
                                   {"mlp.up_proj", "feed_forward.w3"},
                                   {"mlp.down_proj", "feed_forward.w2"},
                                   {"embed_tokens", "tok_embeddings"},
                                   {"lm_head", "output"}};
  const Replacements like_yoco = {{"model.", "decoder."},
                                  {"self_attn", "mixer"},
                                  {"input_layernorm", "mixer_layer_norm"},
                                  {"post_attention_layernorm", "final_layer_norm"},
                                  {"mlp.gate_proj", "ffn.fc1"},
                                  {"mlp.up_proj", "ffn.gate"},
                                  {"mlp.down_proj", "ffn.fc2"},
                                  {"decoder.norm", "decoder.layer_norm"},
                                  {"lm_head", "decoder.output_projection"}};
  for (bool second_version : {false, true}) {
    const UnilmModel model = Unilm(second_version);
    Write("config.json", model.config);
    Write("model.safetensors", SafetensorsBytes(model.tensors));
    EXPECT_EQ(Converted(source()).num_renamed, 0);
    const std::vector<float> expected = Logits(source()),
                             expected_bfloat16 = Logits(source(), DType::kBFloat16);
    ASSERT_FALSE(expected.empty());
    EXPECT_TRUE(std::ranges::all_of(expected, [](float logit) { return std::isfinite(logit); }));
    for (const Replacements& names : {bare, like_llama, like_yoco}) {
      for (bool fused : {false, true}) {
        std::vector<FileTensor> tensors = Renamed(model.tensors, names);
        using Parts = std::vector<std::string>;
        const bool short_names = names == like_llama;
        const Parts qkv = short_names ? Parts{"wq", "wk", "wv"}
                                      : Parts{"q_proj", "k_proj", "v_proj"};
        const Parts gate_up = short_names ? Parts{"w1", "w3"} : Parts{"gate_proj", "up_proj"};
        if (fused) tensors = Fused(tensors, qkv, "qkv_proj");
        if (fused && names != like_yoco) tensors = Fused(tensors, gate_up, "gate_up_proj");
        Write("model.safetensors", SafetensorsBytes(tensors));
        const ConvertReport report = Converted(source());
        EXPECT_EQ(report.num_tensors, model.tensors.size());
        EXPECT_EQ(report.num_divided, !fused ? 0 : names == like_yoco ? 2 : 4);
        EXPECT_GT(report.num_renamed, 10);
        EXPECT_TRUE(Logits(result()) == expected) << second_version << " " << tensors[2].name;
        if (!fused || names != bare) continue;
        Converted(source(), DType::kBFloat16);
        EXPECT_TRUE(Logits(result()) == expected_bfloat16);
      }
    }
  }
}

TEST_F(ConvertTest, BFloat16RoundsMatricesToNearestEvenAndKeepsVectors) {
  TinyCheckpointOptions options;
  WriteModel(options);
  std::vector<FileTensor> tensors = TinyTensors(options);
  const float values[] = {1.00390625f, 1.01171875f, -1.004f, 3.3895e38f, -3.39e38f, 1e-41f};
  const uint16_t rounded[] = {0x3f80, 0x3f82, 0xbf81, 0x7f7f, 0xff7f, 0x0000};
  const auto matrix = std::ranges::find(tensors, "model.layers.1.mlp.up_proj.weight",
                                        &FileTensor::name);
  std::memcpy(matrix->bytes.data(), values, sizeof(values));
  Write("model.safetensors", SafetensorsBytes(tensors));
  Converted(source(), DType::kBFloat16);
  const auto file = SafetensorsFile::Open(result() / "model.safetensors");
  ASSERT_TRUE(file.ok());
  SafetensorsEntry entry = (*file)->header().at("model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(entry.dtype_name, "BF16");
  entry.end = entry.begin + sizeof(rounded);
  uint16_t found[std::size(rounded)];
  ASSERT_TRUE((*file)->Read(entry, reinterpret_cast<std::byte*>(found)).ok());
  for (size_t i = 0; i + 1 < std::size(rounded); ++i) EXPECT_EQ(found[i], rounded[i]) << i;
  EXPECT_EQ((*file)->header().at("model.norm.weight").dtype_name, "F32");
}

TEST_F(ConvertTest, WeightThatIsOrBecomesInfiniteIsRefused) {
  for (float value : {std::numeric_limits<float>::quiet_NaN(), 3.4e38f}) {
    std::vector<FileTensor> tensors = TinyTensors({});
    const auto matrix = std::ranges::find(tensors, "model.layers.1.mlp.up_proj.weight",
                                          &FileTensor::name);
    std::memcpy(matrix->bytes.data(), &value, sizeof(value));
    WriteModel();
    Write("model.safetensors", SafetensorsBytes(tensors));
    EXPECT_THAT(Refusal(source(), DType::kBFloat16),
                HasSubstr("what it would become cannot be served: model.safetensors: tensor "
                          "model.layers.1.mlp.up_proj.weight: element [0, 0] is "));
  }
}

TEST_F(ConvertTest, WeightBeyondFloat16IsRefused) {
  std::vector<FileTensor> tensors = TinyTensors({});
  const auto matrix = std::ranges::find(tensors, "model.layers.1.mlp.up_proj.weight",
                                        &FileTensor::name);
  const float value = 1e6f;
  std::memcpy(matrix->bytes.data(), &value, sizeof(value));
  WriteModel();
  Write("model.safetensors", SafetensorsBytes(tensors));
  EXPECT_THAT(Refusal(source(), DType::kFloat16),
              EndsWith("/model.safetensors: tensor model.layers.1.mlp.up_proj.weight: an element "
                       "is 1000000.000000; allowed: at most 65504, which float16 holds"));
}

TEST_F(ConvertTest, TensorsLargerThanAPieceAreCopiedWhole) {
  TinyCheckpointOptions options;
  options.vocab_size = 70'000;  // an embedding of 8.5 MiB
  WriteModel(options);
  const std::vector<float> expected = Logits(source());
  Converted(source(), std::nullopt, 1'000'000);
  EXPECT_TRUE(Logits(result()) == expected);
  Converted(source(), DType::kBFloat16);
  EXPECT_TRUE(Logits(result()) == Logits(source(), DType::kBFloat16));
}

TEST_F(ConvertTest, CopiedFilesAreListedAndCodeIsNotCopied) {
  TinyCheckpointOptions options;
  options.config_changes = {{"auto_map", "{\"AutoModel\": \"modeling_x.X\"}"},
                            {"rms_norm_eps", "1E-05"}};
  WriteModel(options);
  Write("tokenizer.json", "{\"any\": \"thing\"}");
  Write("tokenizer_config.json",
        "{\n  \"auto_map\": {\"AutoTokenizer\": [\"t.T\", null]},\n  \"bos_token\": \"<s>\"\n}\n");
  Write("chat_template.jinja", "{{ messages }}");
  Write("generation_config.json", "{\"eos_token_id\": 2}");
  Write("modeling_x.py", "import os");
  Write("pytorch_model.bin", "pickle");
  Write("other.safetensors", "not looked at");
  const ConvertReport report = Converted(source());
  EXPECT_THAT(FileNames(result()),
              ElementsAre("chat_template.jinja", "config.json", "generation_config.json",
                          "model.safetensors", "tokenizer.json", "tokenizer_config.json"));
  EXPECT_THAT(report.left_behind,
              ElementsAre("modeling_x.py", "other.safetensors", "pytorch_model.bin"));
  std::string config = TinyConfigJson(options);
  const std::string auto_map = "\n\"auto_map\": {\"AutoModel\": \"modeling_x.X\"},";
  config.erase(config.find(auto_map), auto_map.size());
  EXPECT_EQ(FileBytes(result() / "config.json"), config);
  EXPECT_EQ(FileBytes(result() / "tokenizer_config.json"), "{\n  \"bos_token\": \"<s>\"\n}\n");
  EXPECT_EQ(FileBytes(result() / "chat_template.jinja"), "{{ messages }}");
}

TEST_F(ConvertTest, FurtherTemplatesAreCopied) {
  WriteModel({});
  fs::create_directory(source() / "additional_chat_templates");
  Write("additional_chat_templates/tool_use.jinja", "{{ tools }}");
  Write("additional_chat_templates/notes.txt", "not a template");
  EXPECT_THAT(Converted(source()).left_behind, ElementsAre());
  EXPECT_THAT(FileNames(result() / "additional_chat_templates"), ElementsAre("tool_use.jinja"));
  EXPECT_EQ(FileBytes(result() / "additional_chat_templates" / "tool_use.jinja"), "{{ tools }}");
}

TEST_F(ConvertTest, TiedOutputMatrixEqualToTheEmbeddingIsDropped) {
  TinyCheckpointOptions options;
  WriteModel(options);
  std::vector<FileTensor> tensors = TinyTensors(options);
  FileTensor head = tensors.front();
  head.name = "lm_head.weight";
  tensors.push_back(head);
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, "1234"});
  Write("model.safetensors", SafetensorsBytes(tensors));
  const std::vector<float> expected = Logits(source());
  EXPECT_THAT(Converted(source()).dropped,
              ElementsAre("model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"));
  EXPECT_TRUE(Logits(result()) == expected);

  tensors[tensors.size() - 2].bytes.back() ^= 1;
  Write("model.safetensors", SafetensorsBytes(tensors));
  EXPECT_EQ(Converted(source()).dropped.size(), 1u);
  EXPECT_TRUE(Logits(result()) == Logits(source()));
}

TEST_F(ConvertTest, TiedOutputMatrixIsDroppedForEveryNameOfTheFinalNorm) {
  const fs::path golden = fs::path(SourceDirectory()) / "tests/golden/cases" / kStoredTiedHead;
  EXPECT_THAT(Converted(golden).dropped, ElementsAre("lm_head.weight"));
  const auto file = SafetensorsFile::Open(result() / "model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_FALSE((*file)->header().contains("lm_head.weight"));
  EXPECT_TRUE(Logits(result()) == Logits(golden));
}

TEST_F(ConvertTest, OneFileOfAnyNameIsASource) {
  WriteModel();
  fs::rename(source() / "model.safetensors", source() / "ckpt_final.safetensors");
  Converted(source());
  Write("second.safetensors", "");
  fs::remove_all(result());
  EXPECT_EQ(Refusal(source()),
            source().string() +
                ": holds 2 *.safetensors files; allowed: model.safetensors, shards with " +
                "model.safetensors.index.json, exactly one file");
}

TEST_F(ConvertTest, EmptyDirectoryIsFilledAndAnyOtherIsKept) {
  WriteModel();
  fs::create_directory(result());
  EXPECT_TRUE(Convert(source()).ok());
  const std::vector<std::string> names = FileNames(result());
  EXPECT_EQ(Refusal(source()),
            result().string() +
                ": is not empty; allowed: a new or empty directory; nothing is overwritten");
  EXPECT_EQ(FileNames(result()), names);
  fs::remove_all(result());
  WriteFile(result(), "a file");
  EXPECT_EQ(Refusal(source()),
            result().string() +
                ": is not a directory; allowed: a new or empty directory; nothing is overwritten");
  fs::remove(result());
  fs::create_symlink(root() / "nowhere" / "deep", result());
  EXPECT_THAT(Refusal(source()), HasSubstr("nothing is overwritten"));
}

TEST_F(ConvertTest, NothingOutsideTheSourceIsRead) {
  WriteModel();
  WriteFile(root() / "secret", "key");
  fs::create_symlink(root() / "secret", source() / "chat_template.jinja");
  EXPECT_EQ(Refusal(source()), (source() / "chat_template.jinja").string() + ": is a link to " +
                                   (root() / "secret").string() +
                                   ", outside of the directory, and is not followed; copy the file "
                                   "there (cp -L) if it is meant");
  fs::remove(source() / "chat_template.jinja");
  fs::rename(source() / "model.safetensors", root() / "model.safetensors");
  Write("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../model.safetensors\"}}");
  EXPECT_THAT(Refusal(source()),
              HasSubstr("weight_map.a is \"../model.safetensors\"; allowed: a plain file name"));
  fs::remove(source() / "model.safetensors.index.json");
  fs::create_symlink(root() / "model.safetensors", source() / "model.safetensors");
  EXPECT_THAT(Refusal(source()), HasSubstr("is not followed"));
  fs::rename(source() / "config.json", root() / "config.json");
  fs::create_symlink(root() / "config.json", source() / "config.json");
  EXPECT_THAT(Refusal(source()),
              StartsWith((source() / "config.json").string() + ": is a link to "));
}

TEST_F(ConvertTest, SnapshotInAHuggingFaceCacheIsASource) {
  WriteModel();
  const fs::path repository = root() / "models--a--b";
  fs::create_directories(repository / "snapshots" / "0123");
  fs::rename(source(), repository / "blobs");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::create_symlink(fs::path("../../blobs") / name, repository / "snapshots" / "0123" / name);
  }
  Converted(repository / "snapshots" / "0123");
  EXPECT_FALSE(fs::is_symlink(result() / "config.json"));
}

TEST_F(ConvertTest, UnconvertibleModelIsRefusedInOneLine) {
  const TinyCheckpointOptions options;
  const std::string in = source().string();
  const auto with = [&](const std::function<void(std::vector<FileTensor>&)>& change) {
    WriteModel(options);
    std::vector<FileTensor> tensors = TinyTensors(options);
    change(tensors);
    Write("model.safetensors", SafetensorsBytes(tensors));
    return Refusal(source());
  };
  EXPECT_EQ(Refusal(root() / "none"), (root() / "none").string() + ": does not exist");
  EXPECT_EQ(Refusal(source()),
            in + ": holds no *.safetensors files; allowed: model.safetensors, shards with "
                 "model.safetensors.index.json, exactly one file");
  Write("model.pth", "pickle");
  EXPECT_THAT(
      Refusal(source()),
      HasSubstr(
          "holds no *.safetensors file; a pickle is never opened, since it can run code: save"));
  EXPECT_THAT(Refusal(source() / "model.pth"),
              StartsWith((source() / "model.pth").string() + ": a pickle is never opened"));
  EXPECT_EQ(with([](auto& tensors) { tensors.pop_back(); }),
            in + ": what it would become cannot be served: model.safetensors: tensor "
                 "model.norm.weight is missing; allowed: shape "
                 "[32]");
  EXPECT_THAT(
      with([](auto& tensors) { tensors[2].shape = {16, 64}; }),
      HasSubstr("self_attn.q_proj.weight has shape [16, 64]; allowed: [32, 32] from config.json"));
  EXPECT_THAT(
      with([](auto& tensors) { tensors[2].name = "model.layers.0.self_attn.wq.weight"; }),
      HasSubstr("for tensor model.layers.0.self_attn.wq.weight; allowed: model.embed_tokens, "));
  EXPECT_EQ(with([](auto& tensors) { tensors[1].dtype = "I32"; }),
            in + "/model.safetensors: tensor model.layers.0.input_layernorm.weight has dtype I32; "
                 "allowed: F32, BF16, F16");
  WriteModel(options);
  fs::resize_file(source() / "model.safetensors",
                  fs::file_size(source() / "model.safetensors") - 1);
  EXPECT_THAT(Refusal(source()), HasSubstr("(truncated file?)"));
  WriteModel(options);
  Write("config.json", "{\"model_type\": \"gpt2\"}");
  EXPECT_THAT(Refusal(source()), HasSubstr("model_type is \"gpt2\"; allowed: diffllama"));
  WriteModel(options);
  Write("tokenizer_config.json", "{\"auto\\u005fmap\": {}}");
  EXPECT_EQ(Refusal(source()),
            in + "/tokenizer_config.json: has a key with escapes; allowed: plain keys");
}

TEST_F(ConvertTest, InterruptedConversionLeavesNothing) {
  WriteModel();
  ConvertOptions options;
  options.source_dir = source();
  options.output_dir = result();
  for (int pieces = 0;; ++pieces) {
    int asked = 0;
    options.interrupted = [&] { return asked++ == pieces; };
    const Result<ConvertReport> report = ConvertCheckpoint(options, pool_);
    if (report.ok()) {
      EXPECT_GT(pieces, 20);
      break;
    }
    EXPECT_EQ(report.status().code(), StatusCode::kCancelled);
    EXPECT_EQ(report.status().message(),
              result().string() + ": interrupted, and nothing was written");
    EXPECT_THAT(FileNames(root()), ElementsAre("source"));
  }
}

}  // namespace
}  // namespace diffserve
