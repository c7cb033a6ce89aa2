// SPDX-License-Identifier: Apache-2.0
// The digest of the weights that a model is made of: each byte counts, and the number of threads
// that read them does not.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "models/convert/convert.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

std::string DigestOfModel(const std::string& dir, int num_threads = 1) {
  ThreadPool pool({.num_threads = num_threads, .pin = false, .spin_us = 0});
  ModelOptions options;
  options.model_dir = dir;
  options.digest = std::make_shared<WeightDigest>();
  const Status status = Model::Load(options, pool).status();
  EXPECT_TRUE(status.ok()) << status.message();
  return options.digest->Text();
}

// Changes the lowest bit of each tensor's last element in turn.
void ExpectEachTensorCounts(const std::string& dir) {
  const std::string path = dir + "/model.safetensors", digest = DigestOfModel(dir);
  EXPECT_EQ(digest, DigestOfModel(dir, 3));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  const std::string bytes = FileBytes(path);
  for (const auto& [name, entry] : (*file)->header()) {
    std::string changed = bytes;
    char& last = changed[(*file)->header_bytes() + entry.end - (entry.dtype_name == "F32" ? 4 : 1)];
    last = static_cast<char>(last ^ 1);
    WriteFile(path, changed);
    EXPECT_NE(DigestOfModel(dir), digest) << name;
  }
  WriteFile(path, bytes);
  EXPECT_EQ(DigestOfModel(dir), digest);
}

TEST(WeightDigestTest, EachTensorOfACheckpointCounts) {
  for (const bool tied : {false, true}) {
    const TinyCheckpoint tiny({.tie_word_embeddings = tied, .config_changes = {}});
    ExpectEachTensorCounts(tiny.dir());
  }
}

TEST(WeightDigestTest, EachTensorOfAPackedDirectoryCounts) {
  const TinyCheckpoint tiny;
  ThreadPool pool({.num_threads = 1, .pin = false, .spin_us = 0});
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const TemporaryDirectory packed;
    ConvertOptions options;
    options.source_dir = tiny.dir();
    options.output_dir = packed.path() / "packed";
    options.quantization = format;
    options.isa = testing::EightLanes();
    ASSERT_TRUE(ConvertCheckpoint(options, pool).ok());
    ExpectEachTensorCounts(options.output_dir);
  }
}

TEST(WeightDigestTest, ThreadsDoNotCountInAnyGoldenModel) {
  for (const std::string& name : GoldenCaseNames()) {
    const std::string dir = GoldenCasesDir() + "/" + name;
    EXPECT_EQ(DigestOfModel(dir), DigestOfModel(dir, 2)) << name;
  }
}

}  // namespace
}  // namespace diffserve
