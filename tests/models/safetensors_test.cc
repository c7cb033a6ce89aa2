// SPDX-License-Identifier: Apache-2.0
// Safetensors files and checkpoints that are broken, hostile or odd: each gives a one-line error,
// and none crashes.
#include "models/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/base/thread_pool.h"
#include "models/checkpoint.h"
#include "models/config_reader.h"
#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve {
namespace {

std::string ParseError(std::string_view bytes, size_t file_size) {
  const Result<SafetensorsHeader> header = SafetensorsFile::ParseHeader(bytes, file_size, "f");
  return header.ok() ? "accepted" : header.status().message();
}
std::string HeaderError(const std::string& json, size_t data_bytes) {
  const std::string bytes = SafetensorsHeaderBytes(json);
  return ParseError(bytes, bytes.size() + data_bytes);
}
std::string Tensor(const std::string& name, const std::string& shape, size_t begin, size_t end) {
  return "\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" + shape + "],\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST(SafetensorsHeaderTest, GoodHeadersAreRead) {
  EXPECT_EQ(HeaderError("{}", 0), "accepted");
  EXPECT_EQ(HeaderError("{}      ", 0), "accepted");
  EXPECT_EQ(HeaderError("{\"__metadata__\":{\"format\":\"pt\",\"a\\\"b\":\"\\u00e9\"}}", 0),
            "accepted");
  const std::string bytes = SafetensorsHeaderBytes(
      "{ \"a\" : {\"data_offsets\": [ 8 , 20 ],\n\"shape\":[3,1],\"dtype\":\"F32\"},"
      "\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]},"
      "\"c\":{\"dtype\":\"I16\",\"shape\":[3],\"data_offsets\":[2,8]},"
      "\"d\":{\"dtype\":\"F16\",\"shape\":[0,5],\"data_offsets\":[8,8]}}");
  const Result<SafetensorsHeader> header = SafetensorsFile::ParseHeader(bytes, bytes.size() + 20,
                                                                        "f");
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->size(), 4u);
  EXPECT_EQ(header->at("a").shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(header->at("a").begin, 8u);
  EXPECT_EQ(header->at("b").dtype, DType::kBFloat16);
  EXPECT_FALSE(header->at("c").is_float);
  EXPECT_TRUE(header->at("d").is_float);
}

TEST(SafetensorsHeaderTest, BadHeadersAreRefusedByOneLine) {
  const std::vector<std::pair<std::string, std::string>> refusals = {
      {"", "f: starts with another byte; allowed: '{' (header byte 0)"},
      {" {}", "f: starts with another byte; allowed: '{' (header byte 0)"},
      {"[]", "f: starts with another byte; allowed: '{' (header byte 0)"},
      {"{", "f: another character; allowed: '\"' (header byte 1)"},
      {"{}x", "f: has text behind its end (header byte 2)"},
      {"{\"a\"}", "f: another character; allowed: ':' (header byte 4)"},
      {"{\"a\":1}", "f: another character; allowed: '{' (header byte 5)"},
      {"{\"a\":[[[[", "f: another character; allowed: '{' (header byte 5)"},
      {"{\"a\":{}}", "f: tensor a needs dtype, shape and two data_offsets (header byte 7)"},
      {"{\"a\":{\"x\":1}}",
       "f: tensor a has the key x; allowed: dtype, shape, data_offsets (header byte 10)"},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}",
       "f: tensor a has dtype twice (header byte 28)"},
      {"{\"a\":{\"shape\":[-1]}}",
       "f: another character; allowed: a number without sign (header byte 15)"},
      {"{\"a\":{\"shape\":[1.5]}}", "f: another character; allowed: ']' (header byte 16)"},
      {"{\"a\":{\"shape\":[99999999999999999999]}}", "f: number too large (header byte 33)"},
      {"{\"a\":{\"shape\":[9223372036854775808]}}", "f: number too large (header byte 33)"},
      {"{\"a\":{\"shape\":[1,1,1,1,1,1,1,1,1]}}",
       "f: a list of more than 8 numbers (header byte 32)"},
      {"{\"a\":{\"data_offsets\":[0,4,8]}}", "f: a list of more than 2 numbers (header byte 27)"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}",
       "f: tensor a needs dtype, shape and two data_offsets (header byte 51)"},
      {"{\"\":{}}", "f: a tensor name of 0 bytes; allowed: 1 to 512 (header byte 4)"},
      {"{\"a\\n\":{}}",
       "f: tensor a\\n has a name with other than printable ASCII characters (header byte 7)"},
      {"{\"a\nb\":{}}", "f: control character in a string (header byte 3)"},
      {"{\"abc", "f: a string does not end (header byte 5)"},
      {"{\"abc\\", "f: a string does not end (header byte 6)"},
      {"{\"__metadata__\":{\"a\":1}}", "f: another character; allowed: '\"' (header byte 21)"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}",
       "f: __metadata__ occurs twice (header byte 34)"},
      {"{" + Tensor("a", "1", 0, 4) + "," + Tensor("a", "1", 4, 8) + "}",
       "f: tensor a occurs twice (header byte 55)"},
      {"{" + Tensor("a", "1", 0, 4) + ",}", "f: another character; allowed: '\"' (header byte 54)"},
      {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}",
       "f: tensor a has dtype F33, which the format does not know (header byte 53)"},
      {"{" + Tensor("a", "3", 0, 4) + "}",
       "f: tensor a has 4 bytes; allowed: 12 for F32 [3] (header byte 53)"},
      {"{" + Tensor("a", "1", 4, 0) + "}", "f: tensor a ends before it begins (header byte 53)"},
      {"{" + Tensor("a", "4294967296,4294967296,2", 0, 4) + "}",
       "f: tensor a has a shape whose size overflows (header byte 75)"},
      {"{" + Tensor("a", "2305843009213693952", 0, 0) + "}",
       "f: tensor a has a shape whose size overflows (header byte 71)"},
      {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}",
       "f: tensor a has a size of 12 bits; allowed: whole bytes (header byte 52)"},
  };
  for (const auto& [json, line] : refusals) EXPECT_EQ(HeaderError(json, 8), line) << json;
  EXPECT_EQ(HeaderError("{\"" + std::string(513, 'n') + "\":{}}", 0),
            "f: a tensor name of 513 bytes; allowed: 1 to 512 (header byte 517)");
}

TEST(SafetensorsHeaderTest, TensorsMustCoverTheDataExactly) {
  const auto error = [](const std::string& tensors) {
    return HeaderError("{" + tensors + "}", 12);
  };
  EXPECT_EQ(error(Tensor("b", "2", 4, 12) + "," + Tensor("a", "1", 0, 4)), "accepted");
  EXPECT_EQ(error(Tensor("a", "1", 0, 4) + "," + Tensor("b", "1", 8, 12)),
            "f: tensor b begins at byte 8 of the data; allowed: 4 (hole)");
  EXPECT_EQ(error(Tensor("a", "2", 0, 8) + "," + Tensor("b", "2", 4, 12)),
            "f: tensor b begins at byte 4 of the data; allowed: 8 (overlap)");
  EXPECT_EQ(error(Tensor("a", "3", 0, 12) + "," + Tensor("b", "3", 0, 12)),
            "f: tensor b begins at byte 0 of the data; allowed: 12 (overlap)");
  EXPECT_EQ(error(Tensor("a", "2", 4, 12)),
            "f: tensor a begins at byte 4 of the data; allowed: 0 (hole)");
  EXPECT_EQ(error(Tensor("a", "2", 0, 8)), "f: has 12 bytes of data; allowed: 8 for its tensors");
  EXPECT_EQ(error(Tensor("a", "4", 0, 16)),
            "f: tensor a ends at byte 16 of the data, which has 12 (truncated file?)");
  EXPECT_EQ(error(""), "f: has 12 bytes of data; allowed: 0 for its tensors");
}

TEST(SafetensorsHeaderTest, LengthFieldIsNotTrusted) {
  EXPECT_EQ(ParseError("", 0), "f: has 0 bytes, too few for a safetensors header");
  EXPECT_EQ(ParseError("1234567", 7), "f: has 7 bytes, too few for a safetensors header");
  const auto with_length = [](uint64_t length) {
    std::string bytes = SafetensorsHeaderBytes("{}");
    std::memcpy(bytes.data(), &length, sizeof(length));
    return bytes;
  };
  EXPECT_EQ(ParseError(with_length(3), 10),
            "f: says its header has 3 bytes, and only 2 follow (truncated file?)");
  EXPECT_EQ(ParseError(with_length(100'000'000), 10),
            "f: says its header has 100000000 bytes, and only 2 follow (truncated file?)");
  EXPECT_EQ(ParseError(with_length(100'000'001), 200'000'000),
            "f: says its header has 100000001 bytes; allowed: at most 100000000");
  EXPECT_EQ(ParseError(with_length(UINT64_MAX), 10),
            "f: says its header has 18446744073709551615 bytes; allowed: at most 100000000");
  EXPECT_EQ(ParseError(with_length(UINT64_MAX - 7), 10),
            "f: says its header has 18446744073709551608 bytes; allowed: at most 100000000");
}

TEST(SafetensorsHeaderTest, TooManyTensorsAreRefused) {
  std::string json = "{";
  for (int i = 0; i < 100'000; ++i)
    json.append(i > 0 ? "," : "").append(Tensor(std::to_string(i), "0", 0, 0));
  const std::string error = HeaderError(json + "}", 0);
  EXPECT_TRUE(error.starts_with("f: too many tensors; allowed: at most 65536 (header byte "))
      << error;
}

TEST(SafetensorsHeaderTest, EveryTruncationIsRefused) {
  const std::string bytes = SafetensorsBytes(TinyTensors({}));
  std::vector<size_t> lengths;
  for (size_t length = 0; length < std::min<size_t>(bytes.size(), 4096); ++length)
    lengths.push_back(length);
  const Result<SafetensorsHeader> header = SafetensorsFile::ParseHeader(bytes, bytes.size(), "f");
  ASSERT_TRUE(header.ok()) << header.status().message();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  for (const auto& [name, entry] : *header) {
    const size_t edge = sizeof(header_bytes) + header_bytes + entry.end;
    for (size_t length : {edge - 1, edge, edge + 1}) {
      if (length < bytes.size()) lengths.push_back(length);
    }
  }
  for (size_t length : lengths) {
    EXPECT_NE(ParseError(std::string_view(bytes).substr(0, length), length), "accepted") << length;
  }
  EXPECT_NE(ParseError(bytes, bytes.size() + 1), "accepted") << "trailing byte";
}

// A flipped bit may leave a valid header (with another name, say). It must never crash, and what is
// accepted must be consistent.
TEST(SafetensorsHeaderTest, FlippedBitsAreRefusedOrConsistent) {
  const std::string good = SafetensorsBytes(TinyTensors({}));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, good.data(), sizeof(header_bytes));
  std::mt19937_64 random(7);
  int refused = 0;
  for (int i = 0; i < 10'000; ++i) {
    std::string bytes = good;
    const int flips = 1 + static_cast<int>(random() % 3);
    for (int flip = 0; flip < flips; ++flip) {
      bytes[random() % (sizeof(header_bytes) + header_bytes)] ^= static_cast<char>(1
                                                                                   << random() % 8);
    }
    const Result<SafetensorsHeader> header = SafetensorsFile::ParseHeader(bytes, bytes.size(), "f");
    if (!header.ok()) {
      ++refused;
      EXPECT_EQ(header.status().message().find('\n'), std::string::npos);
      continue;
    }
    for (const auto& [name, entry] : *header)
      EXPECT_LE(entry.end, bytes.size() - sizeof(header_bytes));
  }
  EXPECT_GT(refused, 5000);
}

class CheckpointTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return (directory_.path() / name).string(); }
  void Write(const std::string& name, std::string_view bytes) const {
    WriteFile(directory_.path() / name, bytes);
  }
  void WriteShard(const std::string& name, const std::string& tensor) const {
    Write(name, SafetensorsBytes({{tensor, "F32", {2}, std::string("\0\0\x80\x3f\0\0\0\x40", 8)}}));
  }
  void WriteIndex(const std::string& weight_map) const {
    Write(kIndex, "{\"metadata\": {}, \"weight_map\": " + weight_map + "}");
  }
  std::string OpenError() const {
    const auto checkpoint = Checkpoint::Open(directory_.path().string());
    return checkpoint.ok() ? "accepted" : checkpoint.status().message();
  }
  static constexpr char kIndex[] = "model.safetensors.index.json";
  TemporaryDirectory directory_;
};

TEST_F(CheckpointTest, ShardsAreReadThroughTheIndex) {
  WriteShard("a.safetensors", "x");
  WriteShard("b.safetensors", "y");
  WriteIndex("{\"x\": \"a.safetensors\", \"y\": \"b.safetensors\"}");
  auto checkpoint = Checkpoint::Open(directory_.path().string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_TRUE((*checkpoint)->Has("x"));
  EXPECT_FALSE((*checkpoint)->Has("z"));
  const Result<TensorView> y = (*checkpoint)->Get("y", {2});
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(y->At(0), 1.0f);
  EXPECT_EQ(y->At(1), 2.0f);
}

TEST_F(CheckpointTest, IndexCannotLeaveTheDirectory) {
  WriteShard("a.safetensors", "x");
  for (const std::string shard : {"../a.safetensors", "/etc/passwd", "..", ".", "",
                                  "sub/a.safetensors", "a\\\\b", "./a.safetensors"}) {
    WriteIndex("{\"x\": \"" + shard + "\"}");
    EXPECT_EQ(OpenError(),
              Path(kIndex) + ": weight_map.x is \"" + shard +
                  "\"; allowed: a plain file name: shards must lie in the model directory");
  }
}

TEST_F(CheckpointTest, BadIndexesAreRefusedByOneLine) {
  WriteShard("a.safetensors", "x");
  WriteShard("b.safetensors", "y");
  EXPECT_EQ(OpenError(), directory_.path().string() +
                             ": holds neither model.safetensors nor model.safetensors.index.json; "
                             "it holds a.safetensors without an index that names it");
  Write(kIndex, "{}");
  EXPECT_EQ(
      OpenError(),
      Path(kIndex) + ": weight_map is missing; allowed: an object of tensor names and file names");
  Write(kIndex, "{\"weight_map\": []}");
  EXPECT_EQ(OpenError(), Path(kIndex) + ": weight_map is []; allowed: an object");
  WriteIndex("{}");
  EXPECT_EQ(OpenError(), Path(kIndex) + ": weight_map names 0 files; allowed: 1 to 4096");
  WriteIndex("{\"x\": 1}");
  EXPECT_EQ(OpenError(), Path(kIndex) + ": weight_map.x is 1; allowed: a string");
  WriteIndex("{\"x\": \"none.safetensors\"}");
  EXPECT_EQ(OpenError(),
            Path("none.safetensors") + ": no such file, but " + Path(kIndex) + " names it");
  WriteIndex("{\"x\": \"a.safetensors\", \"y\": \"a.safetensors\"}");
  EXPECT_EQ(OpenError(), Path("a.safetensors") + ": tensor y is missing, but " + Path(kIndex) +
                             " says it is there");
  WriteIndex("{\"x\": \"b.safetensors\"}");
  EXPECT_EQ(OpenError(), Path("b.safetensors") + ": tensor x is missing, but " + Path(kIndex) +
                             " says it is there");
  Write("c.safetensors", SafetensorsBytes({{"x", "F32", {0}, ""}, {"z", "F32", {0}, ""}}));
  WriteIndex("{\"x\": \"a.safetensors\", \"z\": \"c.safetensors\"}");
  EXPECT_EQ(OpenError(), Path("c.safetensors") + ": tensor x is also in " + Path("a.safetensors"));
  // Text from a file must not break the error line, nor colour the terminal.
  WriteIndex("{\"a\\nb\\u0085\\u001b[31m\": \"a.safetensors\"}");
  EXPECT_EQ(OpenError(), Path("a.safetensors") + ": tensor a?b???[31m is missing, but " +
                             Path(kIndex) + " says it is there");
  WriteIndex("{\"a\\nb\": \"/\"}");
  EXPECT_EQ(OpenError(), Path(kIndex) + ": weight_map.a?b is \"/\"; " +
                             "allowed: a plain file name: shards must lie in the model directory");
  WriteIndex("{\"x\": \"a.safetensors\", \"x\": \"b.safetensors\"}");
  EXPECT_EQ(OpenError(), Path(kIndex) + ": the key \"x\" occurs twice in one object");
}

TEST_F(CheckpointTest, NonFileIsRefused) {
  std::filesystem::create_directory(Path("model.safetensors"));
  EXPECT_EQ(OpenError(), Path("model.safetensors") + ": is a directory; allowed: a regular file");
  std::filesystem::remove(Path("model.safetensors"));
  ASSERT_EQ(mkfifo(Path("model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(OpenError(), Path("model.safetensors") + ": is a pipe; allowed: a regular file");
}

TEST_F(CheckpointTest, ShapeAndTypeAreCheckedWhenATensorIsAskedFor) {
  const std::string zeros(8, '\0');
  Write("model.safetensors",
        SafetensorsBytes({{"x", "F32", {2}, zeros}, {"i", "I32", {2}, zeros}}));
  auto opened = Checkpoint::Open(directory_.path().string());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Checkpoint& checkpoint = **opened;
  EXPECT_EQ(
      checkpoint.Check({"x", {2, 1}}).message(),
      Path("model.safetensors") + ": tensor x has shape [2]; allowed: [2, 1] from config.json");
  EXPECT_EQ(checkpoint.Get("z", {3}).status().message(),
            Path("model.safetensors") + ": tensor z is missing; allowed: shape [3]");
  EXPECT_EQ(checkpoint.Get("i", {2}).status().message(),
            Path("model.safetensors") + ": tensor i has dtype I32; allowed: F32, BF16, F16");
}

TEST_F(CheckpointTest, FileThatShrinksDuringReadingIsAnError) {
  WriteShard("model.safetensors", "x");
  auto opened = Checkpoint::Open(directory_.path().string());
  ASSERT_TRUE(opened.ok());
  std::filesystem::resize_file(Path("model.safetensors"), 20);
  EXPECT_EQ((*opened)->Get("x", {2}).status().message(),
            Path("model.safetensors") + ": became shorter while it was read");
}

TEST_F(CheckpointTest, FileModifiedDuringReadingIsAnError) {
  WriteShard("model.safetensors", "x");
  auto opened = Checkpoint::Open(directory_.path().string());
  ASSERT_TRUE(opened.ok());
  std::filesystem::last_write_time(
      Path("model.safetensors"),
      std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ((*opened)->Get("x", {2}).status().message(),
            Path("model.safetensors") + ": was changed while it was read");
}

TEST_F(CheckpointTest, FileReplacedDuringReadingIsReadAsItWas) {
  WriteShard("model.safetensors", "x");
  auto opened = Checkpoint::Open(directory_.path().string());
  ASSERT_TRUE(opened.ok());
  WriteShard("new", "y");
  std::filesystem::rename(Path("new"), Path("model.safetensors"));
  const Result<TensorView> x = (*opened)->Get("x", {2});
  ASSERT_TRUE(x.ok()) << x.status().message();
  EXPECT_EQ(x->At(1), 2.0f);
}

// Values of a tensor that has several pieces, the last of them short.
class LargeTensorTest : public CheckpointTest {
 protected:
  LargeTensorTest() : values_(700'000) { std::iota(values_.begin(), values_.end(), 1.0f); }

  FileTensor Large() const {
    return {"large", "F32", shape_,
            std::string(reinterpret_cast<const char*>(values_.data()), values_.size() * 4)};
  }
  std::unique_ptr<Checkpoint> Opened() {
    Write("model.safetensors",
          SafetensorsBytes({Large(), {"small", "F32", {2}, std::string(8, '\0')}}));
    std::unique_ptr<Checkpoint> checkpoint = Checkpoint::Open(directory_.path().string()).value();
    checkpoint->ReadWith(pool_);
    return checkpoint;
  }

  const std::vector<int64_t> shape_ = {7000, 100};
  std::vector<float> values_;
  ThreadPool pool_{{.num_threads = 3, .pin = false, .spin_us = 0}};
};

TEST_F(LargeTensorTest, WorkersReadEveryPieceAlsoIntoMemoryThatServedBefore) {
  const std::unique_ptr<Checkpoint> checkpoint = Opened();
  for (int round = 0; round < 3; ++round) {
    const TensorView first = checkpoint->Get("large", shape_).value();
    const TensorView small = checkpoint->Get("small", {2}).value();
    const TensorView second = checkpoint->Get("large", shape_).value();
    for (const TensorView& view : {first, second}) {
      ASSERT_TRUE(std::equal(values_.begin(), values_.end(), static_cast<const float*>(view.data)))
          << round;
    }
    EXPECT_EQ(small.At(1), 0.0f);
    checkpoint->ReleaseMemory();
  }
}

TEST_F(LargeTensorTest, WeightsThatAreNotFiniteAreCountedInAllPieces) {
  for (const size_t i : {size_t{250'001}, size_t{699'999}, size_t{600'000}})
    values_[i] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Opened()->Get("large", shape_).status().message(),
            Path("model.safetensors") +
                ": tensor large: element [2500, 1] is inf; allowed: finite numbers; 3 of 700000 "
                "are not");
}

TEST_F(LargeTensorTest, FileThatShrinksIsAnErrorToEachWorker) {
  const std::unique_ptr<Checkpoint> checkpoint = Opened();
  std::filesystem::resize_file(Path("model.safetensors"), 1'500'000);
  EXPECT_EQ(checkpoint->Get("large", shape_).status().message(),
            Path("model.safetensors") + ": became shorter while it was read");
}

TEST_F(CheckpointTest, ListOfObjectsIsReadInLinearTime) {
  std::string json = "{\"weight_map\": {}, \"metadata\": [{}";
  for (int i = 0; i < ConfigReader::kMaxValues - 10; ++i) json += ",{}";
  Write(kIndex, json + "]}");
  EXPECT_EQ(OpenError(), Path(kIndex) + ": weight_map names 0 files; allowed: 1 to 4096");
  for (int i = 0; i < 10; ++i) json += ",{}";
  Write(kIndex, json + "]}");
  EXPECT_EQ(OpenError(), Path(kIndex) + ": has more than 131072 values");
}

TEST_F(CheckpointTest, HalvesAreConverted) {
  Write("model.safetensors",
        SafetensorsBytes({{"f", "F16", {3}, std::string("\x00\x3c\x01\x00\x00\xc0", 6)},
                          {"b", "BF16", {2}, std::string("\x80\x3f\x20\xc0", 4)}}));
  auto opened = Checkpoint::Open(directory_.path().string());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Result<TensorView> f = (*opened)->Get("f", {3});
  ASSERT_TRUE(f.ok());
  EXPECT_EQ(f->At(0), 1.0f);
  EXPECT_EQ(f->At(1), 0x1p-24f);
  EXPECT_EQ(f->At(2), -2.0f);
  const Result<TensorView> b = (*opened)->Get("b", {2});
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->At(0), 1.0f);
  EXPECT_EQ(b->At(1), -2.5f);
}

}  // namespace
}  // namespace diffserve
