// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/refusal.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace diffserve {
namespace {

TEST(RefusalTest, EachKindSaysWhereWhatWasFoundAndWhatIsAllowed) {
  const std::vector<std::pair<Status, const char*>> cases = {
      {NotAllowed("f is NaN", "a number", "f"), "f is NaN; allowed: a number"},
      {OutOfRange("f", -3, 0, 4), "f is -3; allowed: 0 to 4"},
      {BelowMin("f", 0, 1), "f is 0; allowed: at least 1"},
      {NotOneOf("f", "up", "asc, desc"), "f is \"up\"; allowed: asc, desc"},
      {TooMany("f", 9, "entries", 8), "f has 9 entries; allowed: at most 8"},
      {Missing("f"), "f is missing"},
      {Missing("f", "text, chat"), "f is missing; allowed: text, chat"},
      {IsEmpty("f", "at least 1 message"), "f is empty; allowed: at least 1 message"},
      {OnlyWith("f", "logprobs"), "f is set; allowed: only with logprobs"},
      {NotBoth("input", "f"), "input and f are set; allowed: one of them"},
  };
  for (const auto& [status, text] : cases) {
    EXPECT_EQ(status.message(), text);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.param(), "f") << text;
  }
}

TEST(RefusalTest, RefusalOfAFileHasNoParam) {
  EXPECT_EQ(NotAllowed("a/config.json: vocab_size is 0", "1 to 9").param(), "");
}

TEST(RefusalTest, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(QuotedText(std::string(64, 'x')), "\"" + std::string(64, 'x') + "\"");
  EXPECT_EQ(QuotedText(std::string(65, 'x')), "\"" + std::string(64, 'x') + "...\"");
  EXPECT_EQ(QuotedText(std::string(63, 'x') + "\u00e4"), "\"" + std::string(63, 'x') + "...\"");
}

}  // namespace
}  // namespace diffserve
