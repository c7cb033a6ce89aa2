// SPDX-License-Identifier: Apache-2.0
// The bound of a token's bytes: never too small, and absent if there is none.
#include <gtest/gtest.h>

#include <random>

#include "tests/testing/kernels/source_directory.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using json = nlohmann::ordered_json;
using Edit = TokenizerEdit;

Edit Normalizer(const json& part) {
  return [part](json& tokenizer) { tokenizer["normalizer"] = part; };
}

Edit PreTokenizer(const json& part) {
  return [part](json& tokenizer) { tokenizer["pre_tokenizer"] = part; };
}

// Texts near the bound: runs of one character, whole tokens, and characters that normalizers
// shorten.
std::vector<std::string> Texts(const Tokenizer& tokenizer) {
  std::vector<std::string> units = {"a",
                                    " ",
                                    "\n",
                                    "1",
                                    "ü",
                                    "世",
                                    "\U0001F600",
                                    "e\u0301",
                                    "\u212A",
                                    "\uFB03",
                                    "\U0001D400",
                                    "\u1F80",
                                    "\u03B1\u0313\u0345",
                                    "\u1112\u1161\u11AB",
                                    "\x01",
                                    "K",
                                    "▁",
                                    "<s>",
                                    "Ġ"};
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (IsValidUtf8(tokenizer.TokenBytes(id))) units.push_back(tokenizer.TokenBytes(id));
  }
  std::vector<std::string> texts;
  for (const std::string& unit : units) {
    std::string& text = texts.emplace_back();
    while (!unit.empty() && text.size() < 3000) text += unit;
  }
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string& text = texts.emplace_back();
    while (text.size() < 500) text += units[random() % units.size()];
  }
  return texts;
}

void ExpectBounded(const Tokenizer& tokenizer, const std::string& name) {
  ASSERT_GT(tokenizer.max_token_bytes(), 0u) << name;
  for (const std::string& text : Texts(tokenizer)) {
    const size_t tokens = tokenizer.Encode(text, false).value().size();
    EXPECT_GE(tokens * tokenizer.max_token_bytes(), text.size()) << name << ": " << text;
  }
}

TEST(TokenBoundTest, NoTextHasFewerTokensThanTheBound) {
  for (const std::string name : {"byte_bpe", "sentencepiece"})
    ExpectBounded(*LoadTokenizerFixture(name), name);
  const auto demo = Tokenizer::Load(SourceDirectory() + "/models/demo/diff");
  ASSERT_TRUE(demo.ok());
  ExpectBounded(**demo, "demo");
}

TEST(TokenBoundTest, LongTokenRaisesTheBoundToItsOwnLength) {
  const std::string name(77, '=');
  const auto tokenizer = EditedTokenizerFixture("byte_bpe", [&name](json& parsed) {
    json token = parsed["added_tokens"][0];
    token["id"] = 401;
    token["content"] = name;
    parsed["added_tokens"].push_back(token);
  });
  EXPECT_EQ(tokenizer->max_token_bytes(), 77u);
  EXPECT_EQ(tokenizer->Encode(name + name, false)->size(), 2u);
}

TEST(TokenBoundTest, TextThatANormalizerShortensCountsInFull) {
  for (const char* type : {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}) {
    ExpectBounded(*EditedTokenizerFixture("byte_bpe", Normalizer({{"type", type}})), type);
    ExpectBounded(*EditedTokenizerFixture("sentencepiece", Normalizer({{"type", type}})), type);
  }
  const json shrink = {{"type", "Replace"}, {"pattern", {{"String", "   "}}}, {"content", "a"}};
  const json both = {{"type", "Sequence"}, {"normalizers", {shrink, {{"type", "NFKC"}}}}};
  ExpectBounded(*EditedTokenizerFixture("byte_bpe", Normalizer(shrink)), "Replace");
  ExpectBounded(*EditedTokenizerFixture("byte_bpe", Normalizer(both)), "Sequence");
}

TEST(TokenBoundTest, CharactersThatBecomeOneUnknownTokenEachAreBounded) {
  const auto no_fallback = [](bool fused) {
    return [fused](json& parsed) {
      parsed["model"]["byte_fallback"] = false;
      parsed["model"]["fuse_unk"] = fused;
    };
  };
  ExpectBounded(*EditedTokenizerFixture("sentencepiece", no_fallback(false)), "not fused");
  EXPECT_EQ(EditedTokenizerFixture("sentencepiece", no_fallback(true))->max_token_bytes(), 0u);
}

TEST(TokenBoundTest, NormalizersThatDropTextHaveNoBound) {
  for (const std::string name : {"metaspace", "wordpiece"})
    EXPECT_EQ(LoadTokenizerFixture(name)->max_token_bytes(), 0u) << name;
  const std::pair<const char*, Edit> edits[] = {
      {"Strip", Normalizer({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}})},
      {"StripAccents", Normalizer({{"type", "StripAccents"}})},
      {"removing Replace",
       Normalizer({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", ""}})},
      {"Regex Replace",
       Normalizer({{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", " "}})},
      {"WhitespaceSplit", PreTokenizer({{"type", "WhitespaceSplit"}})},
      {"removing Split", PreTokenizer({{"type", "Split"},
                                       {"pattern", {{"String", " "}}},
                                       {"behavior", "Removed"},
                                       {"invert", false}})},
      {"a byte without token", [](json& parsed) { parsed["model"]["vocab"].erase("Ā"); }},
      {"stripping token", [](json& parsed) { parsed["added_tokens"][2]["rstrip"] = true; }},
  };
  for (const auto& [what, edit] : edits)
    EXPECT_EQ(EditedTokenizerFixture("byte_bpe", edit)->max_token_bytes(), 0u) << what;
}

TEST(TokenBoundTest, EncodingStopsBeyondTheRequestedTokens) {
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "word ";
  const std::vector<int32_t> all = tokenizer->Encode(text, false).value();
  const std::vector<int32_t> some = tokenizer->Encode(text, {.max_tokens = 100}).value();
  EXPECT_GT(some.size(), 100u);
  EXPECT_LT(some.size(), 120u);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  EXPECT_EQ(tokenizer->Encode(text, {.max_tokens = all.size()}).value(), all);
}

}  // namespace
}  // namespace diffserve
