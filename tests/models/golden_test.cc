// Every golden case (tests/golden/make_golden.py) through Model::Forward with a paged cache, against Hugging Face's own code.
// The error of logits is max|a - b| / max|b| over all of a prompt's logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "models/model.h"
#include "models/safetensors.h"
#include "tests/testing/checkpoint_writer.h"

namespace diffserve {
namespace {

constexpr double kFloat32Tolerance = 1e-4;
constexpr double kBFloat16Share = 2.0;  // of the reference's own error in bfloat16
constexpr int kPageSize = 16;

struct GoldenCase {
  std::string dir;
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens, vocab]
  std::vector<int32_t> greedy_tokens;
  std::vector<float> greedy_margins;
  float bfloat16_error = 0;
};

std::vector<float> ReadFloats(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry& entry = file.header().at(name);
  EXPECT_EQ(entry.dtype_name, "F32");
  std::vector<float> values((entry.end - entry.begin) / sizeof(float));
  EXPECT_TRUE(file.Read(entry, reinterpret_cast<std::byte*>(values.data())).ok());
  return values;
}

std::vector<int32_t> ToTokens(const std::vector<float>& values) { return {values.begin(), values.end()}; }

GoldenCase ReadCase(const std::string& name) {
  GoldenCase golden;
  golden.dir = std::string(DIFFSERVE_SOURCE_DIR) + "/tests/golden/cases/" + name;
  const auto file = SafetensorsFile::Open(golden.dir + "/expected.safetensors");
  if (!file.ok()) {
    ADD_FAILURE() << file.status().message();
    return golden;
  }
  golden.tokens = ToTokens(ReadFloats(**file, "tokens"));
  golden.logits = ReadFloats(**file, "logits");
  golden.greedy_tokens = ToTokens(ReadFloats(**file, "greedy_tokens"));
  golden.greedy_margins = ReadFloats(**file, "greedy_margins");
  golden.bfloat16_error = ReadFloats(**file, "bfloat16_error").at(0);
  return golden;
}

std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(DIFFSERVE_SOURCE_DIR) + "/tests/golden/cases")) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// One sequence on a cache of its own, whose pages are neither adjacent nor ascending and start out poisoned.
class Runner {
 public:
  Runner(Model& model, int max_tokens)
      : model_(model),
        pages_(static_cast<size_t>((max_tokens + kPageSize - 1) / kPageSize)),
        kv_(PagedKvLayout::Of(model.config().attention, kPageSize, model.dtype()), model.config().num_layers,
            2 * static_cast<int>(pages_.size())) {
    for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = static_cast<int32_t>(2 * (pages_.size() - i) - 1);
    const size_t bytes = KvCache::BytesPerPage(kv_.layout(), model.config().num_layers) * static_cast<size_t>(kv_.num_pages());
    std::fill_n(kv_.Layer(0).base, bytes, std::byte{0xff});  // NaN in both dtypes
  }

  // Appends `tokens` in one step and returns the logits of all of them.
  std::vector<float> Step(const std::vector<int32_t>& tokens) {
    Batch batch;
    batch.tokens = tokens;
    const int rows = static_cast<int>(tokens.size());
    batch.sequences = {{0, rows, position_, pages_.data()}};
    batch.logit_rows.resize(tokens.size());
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    model_.Forward(batch, kv_);
    position_ += rows;
    const std::span<const float> logits = model_.Logits(0, rows);
    return {logits.begin(), logits.end()};
  }

  std::vector<float> Steps(const std::vector<int32_t>& tokens, size_t chunk) {
    std::vector<float> logits;
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      const size_t end = std::min(tokens.size(), begin + chunk);
      const std::vector<float> more = Step({tokens.begin() + static_cast<long>(begin), tokens.begin() + static_cast<long>(end)});
      logits.insert(logits.end(), more.begin(), more.end());
    }
    return logits;
  }

 private:
  Model& model_;
  std::vector<int32_t> pages_;
  KvCache kv_;
  int position_ = 0;
};

double RelativeError(const std::vector<float>& found, const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(found[i]) - expected[i]);
    if (!(error <= worst)) worst = error;  // a NaN is the worst
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return worst / largest;
}

class GoldenTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Model> Load(const std::string& dir, DType dtype, CpuIsa isa) {
    ModelOptions options;
    options.model_dir = dir;
    options.dtype = dtype;
    options.isa = isa;
    Result<std::unique_ptr<Model>> model = Model::Load(options, pool_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(model).value() : nullptr;
  }

  GoldenCase golden_ = ReadCase(GetParam());
  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
};

TEST_P(GoldenTest, Float32LogitsEqualTheReference) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    const auto model = Load(golden_.dir, DType::kFloat32, isa);
    ASSERT_NE(model, nullptr);
    const double error = RelativeError(Runner(*model, 128).Step(golden_.tokens), golden_.logits);
    EXPECT_LE(error, kFloat32Tolerance) << NameOf(isa);
    RecordProperty(std::string("float32_error_over_tolerance_") + std::string(NameOf(isa)),
                   std::to_string(error / kFloat32Tolerance));
  }
}

TEST_P(GoldenTest, BFloat16ErrorIsWithinTwiceTheReferences) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    const auto model = Load(golden_.dir, DType::kBFloat16, isa);
    ASSERT_NE(model, nullptr);
    const double error = RelativeError(Runner(*model, 128).Step(golden_.tokens), golden_.logits);
    EXPECT_LE(error, kBFloat16Share * golden_.bfloat16_error) << NameOf(isa);
    RecordProperty(std::string("bfloat16_error_over_reference_") + std::string(NameOf(isa)),
                   std::to_string(error / golden_.bfloat16_error));
  }
}

TEST_P(GoldenTest, ChunksOfAnySizeGiveTheSameBits) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const auto model = Load(golden_.dir, dtype, isa);
      ASSERT_NE(model, nullptr);
      const std::vector<float> whole = Runner(*model, 128).Step(golden_.tokens);
      for (size_t chunk : {size_t{1}, size_t{7}, size_t{16}}) {
        EXPECT_TRUE(Runner(*model, 128).Steps(golden_.tokens, chunk) == whole)
            << NameOf(isa) << " " << NameOf(dtype) << " chunks of " << chunk;
      }
    }
  }
}

TEST_P(GoldenTest, GreedyContinuationEqualsTheReferences) {
  const double largest = std::abs(*std::ranges::max_element(golden_.logits, {}, [](float x) { return std::abs(x); }));
  const size_t vocab = golden_.logits.size() / golden_.tokens.size();
  for (CpuIsa isa : SupportedCpuIsas()) {
    const auto model = Load(golden_.dir, DType::kFloat32, isa);
    ASSERT_NE(model, nullptr);
    Runner runner(*model, static_cast<int>(golden_.tokens.size() + golden_.greedy_tokens.size()));
    std::vector<float> logits = runner.Step(golden_.tokens);
    for (size_t i = 0; i < golden_.greedy_tokens.size(); ++i) {
      const auto row = logits.end() - static_cast<long>(vocab);
      const auto found = static_cast<int32_t>(std::max_element(row, logits.end()) - row);
      const bool tie = golden_.greedy_margins[i] <= 2 * kFloat32Tolerance * largest;
      if (!tie) {
        ASSERT_EQ(found, golden_.greedy_tokens[i]) << NameOf(isa) << " step " << i;
      }
      logits = runner.Step({golden_.greedy_tokens[i]});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTest, testing::ValuesIn(CaseNames()), [](const auto& info) { return info.param; });

TEST(GoldenCasesTest, CoverBothFamilies) {
  const std::vector<std::string> names = CaseNames();
  EXPECT_GE(std::ranges::count_if(names, [](const std::string& name) { return name.starts_with("diff_"); }), 8);
  EXPECT_GE(std::ranges::count_if(names, [](const std::string& name) { return name.starts_with("llama_"); }), 3);
}

// A golden test sees what it should see: a key of the config that is read wrongly is far outside the tolerance.
TEST(GoldenCasesTest, AKeyReadWronglyIsFarOutsideTheTolerance) {
  struct Mistake { const char* name; const char* right; const char* wrong; };
  ThreadPool pool({.num_threads = 1, .pin = false, .spin_us = 0});
  for (const Mistake& mistake : {Mistake{"diff_llama3_bf16_tied", "\"llama3\"", "\"default\""},
                                 Mistake{"diff_llama3_f16_shards", "\"low_freq_factor\": 1.0", "\"low_freq_factor\": 2.0"},
                                 Mistake{"diff_head_dim_linear", "\"factor\": 4.0", "\"factor\": 3.0"},
                                 Mistake{"diff_gqa2_bf16", "500000.0", "10000.0"},
                                 Mistake{"diff_lambda_extremes", "1e-05", "1e-03"},
                                 Mistake{"llama_gqa_biases_linear", "\"linear\"", "\"default\""}}) {
    const GoldenCase golden = ReadCase(mistake.name);
    TemporaryDirectory directory;
    std::filesystem::copy(golden.dir, directory.path());
    std::ifstream in(golden.dir + "/config.json");
    std::string json((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const size_t place = json.find(mistake.right);
    ASSERT_NE(place, std::string::npos) << mistake.name;
    WriteFile(directory.path() / "config.json", json.replace(place, std::string_view(mistake.right).size(), mistake.wrong));
    ModelOptions options;
    options.model_dir = directory.path().string();
    options.dtype = DType::kFloat32;
    auto model = Model::Load(options, pool);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_GT(RelativeError(Runner(**model, 128).Step(golden.tokens), golden.logits), 5 * kFloat32Tolerance) << mistake.name;
  }
}

// Several sequences in one step: the rows of each are what they are alone, bit for bit.
TEST(BatchInvarianceTest, ASequenceIsTheSameAloneAndInABatch) {
  const GoldenCase golden = ReadCase("diff_gqa2_bf16");
  ThreadPool pool({.num_threads = 2, .pin = false, .spin_us = 0});
  for (CpuIsa isa : SupportedCpuIsas()) {
    ModelOptions options;
    options.model_dir = golden.dir;
    options.isa = isa;
    auto loaded = Model::Load(options, pool);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    Model& model = **loaded;
    EXPECT_EQ(model.dtype(), DType::kBFloat16);
    const size_t vocab = static_cast<size_t>(model.config().vocab_size);

    // Sequence s has the first lengths[s] tokens of the prompt, and all but its last `new_rows` are in the cache already.
    const std::vector<int> lengths = {40, 1, 17, 33, 16};
    const std::vector<int> new_rows = {1, 1, 17, 5, 1};
    KvCache kv(PagedKvLayout::Of(model.config().attention, kPageSize, model.dtype()), model.config().num_layers, 15);
    std::vector<std::vector<int32_t>> pages;
    Batch batch;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int32_t first_page = static_cast<int32_t>(3 * s);
      pages.push_back({first_page, first_page + 2, first_page + 1});
    }
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int cached = lengths[s] - new_rows[s];
      if (cached > 0) {
        model.Forward({{golden.tokens.begin(), golden.tokens.begin() + cached}, {{0, cached, 0, pages[s].data()}}, {}}, kv);
      }
      batch.sequences.push_back({static_cast<int>(batch.tokens.size()), new_rows[s], cached, pages[s].data()});
      batch.tokens.insert(batch.tokens.end(), golden.tokens.begin() + cached, golden.tokens.begin() + lengths[s]);
      batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size() - 1));
    }
    model.Forward(batch, kv);
    const std::span<const float> logits = model.Logits(0, static_cast<int>(lengths.size()));
    const std::vector<float> together(logits.begin(), logits.end());
    for (size_t s = 0; s < lengths.size(); ++s) {
      const std::vector<float> alone = Runner(model, 48).Step({golden.tokens.begin(), golden.tokens.begin() + lengths[s]});
      const auto batched = together.begin() + static_cast<long>(s * vocab);
      EXPECT_TRUE(std::equal(alone.end() - static_cast<long>(vocab), alone.end(), batched)) << NameOf(isa) << " sequence " << s;
    }
  }
}

}  // namespace
}  // namespace diffserve
