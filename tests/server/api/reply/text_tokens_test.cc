// SPDX-License-Identifier: Apache-2.0
// The tokens of the pieces of an answer's text.
#include "server/api/reply/text_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace diffserve {
namespace {

// Each token is a text; 9 is special.
const std::vector<std::string> kTexts = {"<th", "ink>", "Hel", "lo", " wor",
                                         "ld",  "!<",   "b>",  "",   "<eos>"};

class TextTokensTest : public ::testing::Test {
 protected:
  void Add(const std::vector<int32_t>& ids, size_t opening = 0) {
    std::vector<SampleResult> tokens;
    for (const int32_t id : ids) tokens.push_back({.token = id});
    text_tokens_.Add(std::move(tokens), opening);
  }
  std::vector<int32_t> Take(std::string_view piece) {
    std::vector<int32_t> ids;
    for (const SampleResult& token : text_tokens_.Take(piece).tokens) ids.push_back(token.token);
    return ids;
  }
  using Ids = std::vector<int32_t>;

  TextTokens text_tokens_{{[](int32_t id) { return kTexts[static_cast<size_t>(id)]; },
                           [](int32_t id) { return kTexts[static_cast<size_t>(id)].substr(1); },
                           [](int32_t id) { return id == 9; }},
                          /*skips_special=*/true};
};

TEST_F(TextTokensTest, TokensOfHeldTextComeWithTheirText) {
  Add({2});
  Add({3});
  EXPECT_EQ(Take("Hello"), (Ids{2, 3}));
  Add({4, 5});
  EXPECT_EQ(Take(" world"), (Ids{4, 5}));
}

TEST_F(TextTokensTest, TokensOfMarkersBelongToNoPiece) {
  Add({0, 1, 2, 3, 9});
  EXPECT_EQ(Take("Hello"), (Ids{2, 3}));
}

TEST_F(TextTokensTest, TokenOfTwoPiecesBelongsToTheFirst) {
  Add({5, 6});
  EXPECT_EQ(Take("ld!"), (Ids{5, 6}));
  Add({7});
  EXPECT_EQ(Take("<b>"), (Ids{7}));
}

TEST_F(TextTokensTest, PieceThatEndsInsideATokenHasIt) {
  Add({2, 3, 4, 5});
  EXPECT_EQ(Take("Hello wo"), (Ids{2, 3, 4}));
}

TEST_F(TextTokensTest, OpeningTokenHasItsTextWithoutTheSpace) {
  Add({4, 5}, /*opening=*/1);
  const PieceTokens own = text_tokens_.Take("world");
  EXPECT_EQ(own.tokens.size(), 2u);
  EXPECT_EQ(own.opening_tokens, 1u);
}

TEST_F(TextTokensTest, PieceOfAnotherTextHasAllTokens) {
  Add({2, 3});
  EXPECT_EQ(Take("h\xC3\xA9llo"), (Ids{2, 3}));
  Add({4});
  EXPECT_EQ(Take(" wor"), (Ids{4}));
}

TEST_F(TextTokensTest, ClearedTokensBelongToNoPiece) {
  Add({2, 3});
  text_tokens_.Clear();
  Add({3});
  EXPECT_EQ(Take("lo"), (Ids{3}));
}

}  // namespace
}  // namespace diffserve
