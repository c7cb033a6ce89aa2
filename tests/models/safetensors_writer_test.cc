// SPDX-License-Identifier: Apache-2.0
#include "models/convert/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "models/checkpoint.h"
#include "models/config_reader.h"
#include "models/safetensors.h"
#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;

struct Sample {
  std::vector<OutputTensor> tensors;
  std::vector<std::byte> data;  // of all tensors
  uint64_t max_shard_bytes = 0;
};

// Shapes of rank 0 to 4, including empty ones.
Sample RandomSample(std::mt19937& random) {
  const auto draw = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  Sample sample;
  const int count = draw(12);
  for (int i = 0; i < count; ++i) {
    OutputTensor tensor{
        "model.layers." + std::to_string(i) + ".t", static_cast<DType>(draw(3)), {}};
    for (int rank = draw(5); rank > 0; --rank)
      tensor.shape.push_back(draw(8) == 0 ? 0 : 1 + draw(5));
    sample.data.resize(sample.data.size() + tensor.size_bytes());
    sample.tensors.push_back(std::move(tensor));
  }
  // Finite numbers of each dtype: no exponent is all ones.
  for (std::byte& byte : sample.data) byte = static_cast<std::byte>(random() & 0xbf);
  sample.max_shard_bytes = draw(3) == 0 ? 5'000'000'000 : static_cast<uint64_t>(draw(400));
  return sample;
}

std::unique_ptr<SafetensorsWriter> WriteInPortions(const Sample& sample, const std::string& dir,
                                                   std::mt19937& random) {
  Result<std::unique_ptr<SafetensorsWriter>> created = SafetensorsWriter::Create(
      dir, sample.tensors, sample.max_shard_bytes);
  EXPECT_TRUE(created.ok()) << created.status().message();
  std::unique_ptr<SafetensorsWriter> writer = std::move(created).value();
  for (std::span<const std::byte> rest(sample.data); !rest.empty();) {
    const size_t portion = std::min<size_t>(rest.size(), 1 + random() % 300);
    EXPECT_TRUE(writer->Append(rest.first(portion)).ok());
    rest = rest.subspan(portion);
  }
  EXPECT_TRUE(writer->Close().ok());
  return writer;
}

TEST(SafetensorsWriterTest, WrittenValuesAreReadBack) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const Sample sample = RandomSample(random);
    TemporaryDirectory dir;
    const auto writer = WriteInPortions(sample, dir.path(), random);
    EXPECT_EQ(writer->total_bytes(), sample.data.size());
    Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    size_t begin = 0;
    for (const OutputTensor& tensor : sample.tensors) {
      const Result<TensorView> view = (*checkpoint)->Get(tensor.name, tensor.shape);
      ASSERT_TRUE(view.ok()) << view.status().message();
      EXPECT_EQ(view->dtype, tensor.dtype);
      const auto* const found = static_cast<const std::byte*>(view->data);
      EXPECT_TRUE(std::equal(found, found + tensor.size_bytes(),
                             sample.data.begin() + static_cast<long>(begin)));
      begin += tensor.size_bytes();
    }
  }
}

TEST(SafetensorsWriterTest, FileIsAlignedInOrderAndNoLargerThanAllowed) {
  std::mt19937 random(2);
  for (int round = 0; round < 60; ++round) {
    const Sample sample = RandomSample(random);
    TemporaryDirectory dir;
    const size_t count = WriteInPortions(sample, dir.path(), random)->num_files();
    size_t next = 0;
    for (size_t i = 0; i < count; ++i) {
      char name[64] = "model.safetensors";
      if (count > 1)
        std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, count);
      const std::string bytes = FileBytes(dir.path() / name);
      uint64_t header_bytes = 0;
      std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
      EXPECT_EQ(header_bytes % 8, 0u);
      EXPECT_EQ(bytes.substr(8, 32), std::string("{\"__metadata__\":{\"format\":\"pt\"}") +
                                         (sample.tensors.empty() ? "}" : ","));
      const uint64_t data_bytes = bytes.size() - sizeof(header_bytes) - header_bytes;
      const auto file = SafetensorsFile::Open(dir.path() / name);
      ASSERT_TRUE(file.ok());
      size_t begin = 0, nonempty = 0;
      for (size_t left = (*file)->header().size(); left > 0; --left, ++next) {
        const SafetensorsEntry entry = (*file)->header().at(sample.tensors.at(next).name);
        EXPECT_EQ(entry.begin, begin);
        begin = entry.end;
        nonempty += entry.end > entry.begin;
      }
      EXPECT_TRUE(data_bytes <= sample.max_shard_bytes || nonempty == 1)
          << data_bytes << " " << sample.max_shard_bytes;
    }
    EXPECT_EQ(next, sample.tensors.size());
    EXPECT_EQ(std::filesystem::exists(dir.path() / "model.safetensors.index.json"), count > 1);
  }
}

TEST(SafetensorsWriterTest, IndexHasTheSizeOfAllTensors) {
  TemporaryDirectory dir;
  const auto writer = SafetensorsWriter::Create(
      dir.path(), {{"a", DType::kFloat32, {3}}, {"b", DType::kBFloat16, {2, 2}}}, 12);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->num_files(), 2u);
  Result<ConfigReader> index = ConfigReader::Open(dir.path() / "model.safetensors.index.json");
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->Object("metadata")->Int("total_size", std::nullopt, 0, 1000), 20);
  using Places = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(index->Object("weight_map")->StringMembers(),
            (Places{{"a", "model-00001-of-00002.safetensors"},
                    {"b", "model-00002-of-00002.safetensors"}}));
}

TEST(SafetensorsWriterTest, HeadersAndSizesAreWrittenBeforeTheData) {
  TemporaryDirectory dir;
  const std::vector<OutputTensor> tensors = {{"a", DType::kFloat32, {5, 7}},
                                             {"b", DType::kFloat16, {9}}};
  const auto writer = SafetensorsWriter::Create(dir.path(), tensors, 100);
  ASSERT_TRUE(writer.ok());
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_TRUE((*checkpoint)->Check({"a", {5, 7}}).ok());
  EXPECT_TRUE((*checkpoint)->Check({"b", {9}}).ok());
}

TEST(SafetensorsWriterTest, RefusesWhatItCannotWrite) {
  TemporaryDirectory dir;
  WriteFile(dir.path() / "model.safetensors", "someone's");
  const auto exists = SafetensorsWriter::Create(dir.path(), {{"a", DType::kFloat32, {1}}}, 100);
  ASSERT_FALSE(exists.ok());
  EXPECT_EQ(exists.status().message(),
            (dir.path() / "model.safetensors").string() + ": cannot be written: File exists");
  EXPECT_EQ(FileBytes(dir.path() / "model.safetensors"), "someone's");

  std::vector<OutputTensor> many;
  for (size_t i = 0; i <= SafetensorsWriter::kMaxShards; ++i)
    many.push_back({"t" + std::to_string(i), DType::kFloat32, {1}});
  const auto shards = SafetensorsWriter::Create(dir.path(), many, 4);
  ASSERT_FALSE(shards.ok());
  EXPECT_EQ(shards.status().message(),
            "files of 4 bytes would be 4097 files; allowed: at most 4096");
  EXPECT_EQ(shards.status().param(), "max_shard_bytes");
}

}  // namespace
}  // namespace diffserve
