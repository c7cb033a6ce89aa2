// SPDX-License-Identifier: Apache-2.0
#include "engine/text/detokenizer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/text/utf8_repair.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using Ids = std::vector<int32_t>;

// Streams `ids`, which follow `prompt`, and checks each delta; returns the deltas joined.
std::string Stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special_tokens,
                   const Ids& prompt = {}) {
  Detokenizer detokenizer(tokenizer, skip_special_tokens, prompt);
  std::string text;
  for (const int32_t id : ids) {
    const std::string delta = detokenizer.Push(id);
    EXPECT_TRUE(IsValidUtf8(delta)) << ::testing::PrintToString(ids);
    text += delta;
  }
  const std::string tail = detokenizer.Finish();
  EXPECT_TRUE(IsValidUtf8(tail));
  return text + tail;
}

// Any ids, and some real text, so that whole characters of several tokens occur.
Ids RandomWalk(const Tokenizer& tokenizer, std::mt19937& random) {
  static const std::vector<std::string> texts = {"emoji 😀👩‍👩‍👧🇨🇭",
                                                 "日本語 世界 テスト", "Zürich, naïve",
                                                 "  two  spaces ", "नमस्ते שלום"};
  const auto size = static_cast<uint32_t>(tokenizer.vocab_size());
  Ids walk;
  const size_t length = 1 + random() % 40;
  while (walk.size() < length) {
    if (random() % 4 == 0) {
      const Ids ids = tokenizer.Encode(texts[random() % texts.size()], random() % 2 == 0).value();
      walk.insert(walk.end(), ids.begin(), ids.end());
    } else {
      walk.push_back(static_cast<int32_t>(random() % size));
    }
  }
  return walk;
}

TEST(DetokenizerTest, DeltasOfTenThousandRandomWalksJoinToTheFullDecode) {
  std::mt19937 random(11);
  for (const std::string& name : TokenizerFixtures()) {
    const auto tokenizer = LoadTokenizerFixture(name);
    for (int round = 0; round < 2000; ++round) {
      const Ids walk = RandomWalk(*tokenizer, random);
      const bool skip = random() % 2 == 0;
      ASSERT_EQ(Stream(*tokenizer, walk, skip), tokenizer->Decode(walk, skip).value())
          << name << " " << ::testing::PrintToString(walk);
    }
  }
}

TEST(DetokenizerTest, PromptAndContinuationJoinToTheFullDecodeAtEveryCut) {
  std::mt19937 random(12);
  for (const auto& [form, tokenizer] : TokenizerForms()) {
    // The library drops complete characters in an invalid run of bytes, which a stream cannot do.
    if (form == "two spaces stripped") continue;
    for (int round = 0; round < 300; ++round) {
      const Ids walk = RandomWalk(*tokenizer, random);
      const bool skip = random() % 2 == 0;
      const auto cut = walk.begin() + static_cast<ptrdiff_t>(random() % (walk.size() + 1));
      const Ids prompt(walk.begin(), cut);
      const std::string before = TextBefore(*tokenizer, prompt, skip).value();
      ASSERT_EQ(before + Stream(*tokenizer, {cut, walk.end()}, skip, prompt),
                tokenizer->Decode(walk, skip).value())
          << form << " cut at " << prompt.size() << ": " << ::testing::PrintToString(walk);
    }
  }
}

TEST(DetokenizerTest, ContinuationEqualsTheLibrarysPrimedStream) {
  const auto forms = TokenizerForms();
  int count = 0;
  for (const auto& item : Continuations("cases")) {
    const Tokenizer& tokenizer = *forms.at(item["form"]);
    const Ids prompt = item["prompt"];
    const bool skip = item["skip_special_tokens"];
    EXPECT_EQ(Stream(tokenizer, item["ids"], skip, prompt), item["text"].get<std::string>())
        << item;
    EXPECT_EQ(TextBefore(tokenizer, prompt, skip).value(), item["before"].get<std::string>())
        << item;
    ++count;
  }
  EXPECT_GT(count, 400);
}

TEST(DetokenizerTest, BytesOfAContinuationsTokensAreItsText) {
  const auto forms = TokenizerForms();
  for (const auto& item : Continuations("cases")) {
    const auto& tokenizer = forms.at(item["form"]);
    if (tokenizer->table().decoding == TokenTable::Decoding::kLibrary) continue;
    const Ids prompt = item["prompt"], ids = item["ids"];
    const bool skip = item["skip_special_tokens"];
    Ids all = prompt;
    all.insert(all.end(), ids.begin(), ids.end());
    const size_t opening = tokenizer->table().OpeningTokens(all, skip);
    std::string bytes;
    for (size_t i = prompt.size(); i < all.size(); ++i) {
      if (skip && tokenizer->IsSpecial(all[i])) continue;
      bytes += i < opening ? tokenizer->FirstTokenBytes(all[i]) : tokenizer->TokenBytes(all[i]);
    }
    if (!IsValidUtf8(bytes)) continue;  // the prompt's last character is broken
    EXPECT_EQ(bytes, item["text"].get<std::string>()) << item;
  }
}

TEST(DetokenizerTest, DeltasJoinToTransformersText) {
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  for (const std::string& name : TokenizerFixtures()) tokenizers[name] = LoadTokenizerFixture(name);
  for (const auto& item : TextGolden("decode")) {
    const auto ids = item["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(Stream(*tokenizers.at(item["fixture"]), ids, item["skip_special_tokens"]),
              item["text"].get<std::string>())
        << item;
  }
}

TEST(DetokenizerTest, CharacterAppearsWithItsLastToken) {
  const auto tokenizer = LoadTokenizerFixture("sentencepiece");
  Detokenizer detokenizer(*tokenizer, true);
  EXPECT_EQ(detokenizer.Push(3 + 0xE0), "");
  EXPECT_EQ(detokenizer.Push(3 + 0xA4), "");
  EXPECT_EQ(detokenizer.Push(3 + 0xA8), "न");
  EXPECT_EQ(detokenizer.Push(3 + 'x'), "x");
  EXPECT_EQ(detokenizer.Push(3 + 0xE0), "");
  EXPECT_EQ(detokenizer.Push(3 + 0xA4), "");
  EXPECT_EQ(detokenizer.Finish(), "��") << "one for each byte, as transformers";
}

TEST(DetokenizerTest, SpecialTokensHaveTextOnlyIfTheyAreNotSkipped) {
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  EXPECT_EQ(Detokenizer(*tokenizer, true).Push(4), "");
  EXPECT_EQ(Detokenizer(*tokenizer, false).Push(4), "<|end|>");
  EXPECT_EQ(Detokenizer(*tokenizer, true).Push(tokenizer->vocab_size() - 1), "<tool>");
}

TEST(DetokenizerTest, IdBeyondTheVocabularyHasNoText) {
  for (const std::string& name : TokenizerFixtures()) {
    const auto tokenizer = LoadTokenizerFixture(name);
    Detokenizer detokenizer(*tokenizer, false);
    EXPECT_EQ(detokenizer.Push(tokenizer->vocab_size()), "");
    EXPECT_EQ(detokenizer.Push(-1), "");
    EXPECT_EQ(detokenizer.Finish(), "");
  }
}

TEST(DetokenizerTest, IncompleteCharactersAreNotHeldBackForever) {
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  const auto ids = tokenizer->Encode("न", false).value();
  ASSERT_EQ(tokenizer->TokenBytes(ids[0])[0], '\xE0');
  Detokenizer detokenizer(*tokenizer, true);
  size_t shown = 0;
  for (int i = 0; i < 1000; ++i) shown += detokenizer.Push(ids[0]).size();
  EXPECT_EQ(shown, 999u * 3) << "each start of a character ends the one before";
}

// The definition: at each position, the longest prefix of a character in the bytes, copied if
// complete and replaced if broken.
std::string RepairedByDefinition(const std::string& bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    size_t longest = 1;
    bool whole = false;
    for (size_t n = 1; n <= 4 && i + n <= bytes.size(); ++n) {
      const std::string part = bytes.substr(i, n);
      if (IsValidUtf8(part)) {
        whole = true;
        longest = n;
        break;
      }
      // A start of some character: completed by one of the extreme tails.
      for (const std::string tail :
           {"\x80", "\xBF", "\x80\x80", "\xBF\xBF", "\x80\x80\x80", "\xBF\xBF\xBF"}) {
        if (IsValidUtf8(part + tail)) longest = n;
      }
    }
    out += whole ? bytes.substr(i, longest) : "�";
    i += longest;
  }
  return out;
}

TEST(Utf8RepairTest, InvalidUtf8IsReplacedAsDefined) {
  std::mt19937 random(5);
  const std::vector<unsigned char> bytes = {0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                            0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEE,
                                            0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF, 0x00};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t n = random() % 9; n > 0; --n)
      text.push_back(static_cast<char>(bytes[random() % bytes.size()]));
    Utf8Repair repair(Utf8Repair::Unit::kCharacter);
    std::string out;
    for (size_t i = 0; i < text.size();) {
      const size_t n = 1 + random() % 3;
      repair.Push(std::string_view(text).substr(i, n), out);
      ASSERT_TRUE(IsValidUtf8(out));
      i += n;
    }
    repair.Finish(out);
    ASSERT_EQ(out, RepairedByDefinition(text)) << ::testing::PrintToString(text);
  }
}

}  // namespace
}  // namespace diffserve
