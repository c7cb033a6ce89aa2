// SPDX-License-Identifier: Apache-2.0
#include "engine/text/tokenizer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

constexpr size_t kLongRunBytes = 200'000;

std::map<std::string, std::unique_ptr<Tokenizer>> LoadAll() {
  std::map<std::string, std::unique_ptr<Tokenizer>> all;
  for (const std::string& name : TokenizerFixtures()) all[name] = LoadTokenizerFixture(name);
  return all;
}

std::string LoadError(const TemporaryDirectory& dir) {
  const auto loaded = Tokenizer::Load(dir.path());
  EXPECT_FALSE(loaded.ok());
  return loaded.ok() ? "" : loaded.status().message();
}

TEST(TokenizerTest, EncodesAsTransformersDoes) {
  const auto tokenizers = LoadAll();
  int count = 0;
  for (const auto& item : TextGolden("encode")) {
    const auto ids = tokenizers.at(item["fixture"])
                         ->Encode(item["text"].get<std::string>(), item["add_special_tokens"]);
    ASSERT_TRUE(ids.ok()) << item << ids.status().message();
    EXPECT_EQ(ids.value(), item["ids"].get<std::vector<int32_t>>()) << item;
    ++count;
  }
  EXPECT_GT(count, 100);
}

TEST(TokenizerTest, DecodesAsTransformersDoes) {
  const auto tokenizers = LoadAll();
  int count = 0;
  for (const auto& item : TextGolden("decode")) {
    const auto ids = item["ids"].get<std::vector<int32_t>>();
    const auto text = tokenizers.at(item["fixture"])->Decode(ids, item["skip_special_tokens"]);
    ASSERT_TRUE(text.ok()) << item << text.status().message();
    EXPECT_EQ(text.value(), item["text"].get<std::string>()) << item;
    ++count;
  }
  EXPECT_GT(count, 300);
}

TEST(TokenizerTest, ByteLevelTextComesBackUnchanged) {
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  for (const auto& item : TextGolden("encode")) {
    const auto text = item["text"].get<std::string>();
    const auto ids = tokenizer->Encode(text, true);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(tokenizer->Decode(ids.value(), false).value(), text);
  }
}

TEST(TokenizerTest, BytesOfAByteLevelTextsTokensAreTheText) {
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  const std::string text = "Zürich 😀 日本語 नमस्ते\n\t\x01";
  std::string joined;
  bool split_character = false;
  const std::vector<int32_t> ids = tokenizer->Encode(text, false).value();
  for (const int32_t id : ids) {
    joined += tokenizer->TokenBytes(id);
    split_character |= !IsValidUtf8(tokenizer->TokenBytes(id));
  }
  EXPECT_EQ(joined, text);
  EXPECT_TRUE(split_character) << "the fixture is meant to split characters";
}

TEST(TokenizerTest, ByteTokenDecodesToItsByte) {
  const auto tokenizer = LoadTokenizerFixture("sentencepiece");
  EXPECT_EQ(tokenizer->TokenBytes(3 + 0xE4), "\xE4");
  EXPECT_EQ(tokenizer->TokenBytes(3), std::string(1, '\0'));
  EXPECT_EQ(tokenizer->TokenBytes(1), "<s>");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(tokenizer->vocab_size()), "");
}

TEST(TokenizerTest, KnowsWhichTokensAreSpecial) {
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  for (int32_t id = 0; id < 5; ++id) EXPECT_TRUE(tokenizer->IsSpecial(id));
  const auto tool = tokenizer->Encode("<tool>", false).value();
  ASSERT_EQ(tool.size(), 1u);
  EXPECT_EQ(tool[0], tokenizer->vocab_size() - 1);
  EXPECT_FALSE(tokenizer->IsSpecial(tool[0]));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_FALSE(tokenizer->IsSpecial(1 << 30));
}

TEST(TokenizerTest, TokenNamedByTheConfigIsSpecial) {
  TemporaryDirectory dir;
  dir.Write("tokenizer.json", FileBytes(TextDataDir() + "/byte_bpe/tokenizer.json"));
  dir.Write("tokenizer_config.json",
            R"({"eos_token": "<tool>", "pad_token": "not in the vocabulary"})");
  const auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_TRUE(tokenizer.value()->IsSpecial(tokenizer.value()->vocab_size() - 1));
  EXPECT_EQ(tokenizer.value()->vocab_size(), LoadTokenizerFixture("byte_bpe")->vocab_size());
}

TEST(TokenizerTest, RefusesAnIdOutsideTheVocabulary) {
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  const int size = tokenizer->vocab_size();
  for (const int32_t id : {-1, size, INT32_MAX, INT32_MIN}) {
    const auto text = tokenizer->Decode(std::vector<int32_t>{5, id}, false);
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.status().message(),
              "token 1 is " + std::to_string(id) + "; allowed: 0 to " + std::to_string(size - 1));
  }
}

TEST(TokenizerTest, RefusesTextThatIsNotUtf8) {
  const auto ids = LoadTokenizerFixture("byte_bpe")->Encode("ab\xFF", false);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ids.status().message(), "the text is not UTF-8 at byte 2");
}

TEST(TokenizerTest, FileErrorIsOneLine) {
  const std::string good = FileBytes(TextDataDir() + "/byte_bpe/tokenizer.json");
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "is empty"},
      {"{", "EOF"},
      {"[]", "tokenizer.json"},
      {"\xFF\xFE", "line 1"},
      {good.substr(0, good.size() / 2), "EOF"},
      {std::string(200000, '['), "recursion limit"},
      {R"({"version":"1.0","model":{"type":"BPE","vocab":{"a":4294967295},"merges":[]},"added_tokens":[]})",
       "4294967295"},
      {R"({"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":["x y"]},"added_tokens":[]})",
       "out of vocabulary"},
      {R"({"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]},"added_tokens":[]})",
       "empty"},
      {R"({"version":"1.0","model":{"type":"None"}})", "tokenizer.json"},
      {R"({"model":{"type":"BPE","dropout":0.5,"vocab":{"a":0,"aa":1},"merges":["a a"]}})",
       "dropout is 0.5, which makes tokens random; allowed: null, 0 and 1"},
  };
  for (const auto& [json, expected] : bad) {
    TemporaryDirectory dir;
    dir.Write("tokenizer.json", json);
    const std::string message = LoadError(dir);
    EXPECT_TRUE(message.starts_with(dir.path().string() + "/tokenizer.json: ")) << message;
    EXPECT_NE(message.find(expected), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 1000u);
  }
}

TEST(TokenizerTest, MissingFileIsNamed) {
  TemporaryDirectory dir;
  EXPECT_EQ(LoadError(dir), dir.path().string() + "/tokenizer.json: no such file");
  std::filesystem::create_directory(dir.path().string() + "/tokenizer.json");
  EXPECT_EQ(LoadError(dir),
            dir.path().string() + "/tokenizer.json: is a directory; allowed: a regular file");
}

TEST(TokenizerTest, RefusesABrokenConfig) {
  TemporaryDirectory dir;
  dir.Write("tokenizer.json", FileBytes(TextDataDir() + "/byte_bpe/tokenizer.json"));
  dir.Write("tokenizer_config.json", "[1]");
  EXPECT_EQ(LoadError(dir), dir.path().string() + "/tokenizer_config.json: not a JSON object");
  dir.Write("tokenizer_config.json", "");
  EXPECT_EQ(LoadError(dir), dir.path().string() + "/tokenizer_config.json: is empty");
}

TEST(TokenizerTest, MutatedFileIsRefusedOrLoadsAndNeverCrashes) {
  const std::string good = FileBytes(TextDataDir() + "/sentencepiece/tokenizer.json");
  std::mt19937 random(3);
  int loaded = 0;
  for (int round = 0; round < 150; ++round) {
    std::string json = good;
    for (int k = 0; k < 3; ++k) json[random() % json.size()] = "0\"{[]},:x\xFF"[random() % 10];
    TemporaryDirectory dir;
    dir.Write("tokenizer.json", json);
    const auto tokenizer = Tokenizer::Load(dir.path());
    if (!tokenizer.ok()) continue;
    ++loaded;
    (void)tokenizer.value()->Encode("Zürich is 世界 <0x41>", true);
    (void)tokenizer.value()->Decode(std::vector<int32_t>{0, 1, 2, 100}, false);
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 150);
}

TEST(TokenizerTest, ManyThreadsEncodeAndDecodeAtOnce) {
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  const auto golden = TextGolden("encode");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 10; ++round) {
        for (const auto& item : golden) {
          if (item["fixture"] != "byte_bpe") continue;
          const auto text = item["text"].get<std::string>();
          const std::vector<int32_t> ids = tokenizer->Encode(text, false).value();
          EXPECT_EQ(tokenizer->Decode(ids, false).value(), text);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// On long runs of one kind, patterns and merges may become quadratic. This text takes seconds if
// they do not, and hours if they do.
TEST(TokenizerTest, LongRunsOfOneKindAreEncoded) {
  const auto tokenizers = LoadAll();
  for (const std::string unit :
       {"a", " ", "\n", "1", "!", "ü", "世", "a ", "<s", "\xF0\x9F\x98\x80"}) {
    std::string text;
    while (text.size() < kLongRunBytes) text += unit;
    for (const std::string name : {"byte_bpe", "sentencepiece"}) {
      const Result<std::vector<int32_t>> ids = tokenizers.at(name)->Encode(text, false);
      ASSERT_TRUE(ids.ok()) << name << " with runs of '" << unit << "': " << ids.status().message();
      EXPECT_EQ(tokenizers.at(name)->Decode(*ids, false).value(), text)
          << name << " with runs of '" << unit << "'";
    }
  }
}

}  // namespace
}  // namespace diffserve
