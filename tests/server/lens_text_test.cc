// SPDX-License-Identifier: Apache-2.0
#include "server/app/chat/lens_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

LensAnswer TwoHeads() {
  LensAnswer answer{2, 3, 4, {"The ", "\x1b[2J", "48213", " is ", "4"}, {}};
  answer.heads.push_back({0, 1, 0.5f, 1, 0.1f, {{0, 0.9f, 0.1f, 0.85f}}});
  answer.heads.push_back({2,
                          3,
                          0.5f,
                          2,
                          0.25f,
                          {{3, 0.1f, 0.9f, -0.35f},
                           {1, 0.2f, 0.1f, 0.15f},
                           {2, 0.75f, 0.0f, 0.75f},
                           {0, 0, 0, 0.0004f}}});
  return answer;
}

TEST(LensTextTest, ShowsTheHeadThatCancelsMostLargestFirst) {
  const Result<std::string> text = LensText(TwoHeads(), 7);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(*text,
            "token 7 of the answer, \"4\", as it was written: layer 2, head 3 (of 3 and 4), which "
            "cancels most: 25 % of A1; lambda 0.500\n"
            "     A1                lambda A2         A1 - lambda A2\n"
            "  0.750 ███████▌    0.000             0.750 ███████▌   \"48213\"\n"
            "  0.200 ██          0.050 ▌           0.150 █▌         \"␛[2J\"\n");
}

TEST(LensTextTest, ShowsSharpestHeadForPlainAttention) {
  LensAnswer answer = TwoHeads();
  answer.num_maps = 1;
  const Result<std::string> text = LensText(answer, 1);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_THAT(*text, HasSubstr("layer 0, head 1 (of 3 and 4), which looks at the fewest tokens\n"
                               "     A1\n  0.900 █████████  \"The \"\n"));
  EXPECT_THAT(*text, Not(HasSubstr("lambda")));
}

TEST(LensTextTest, AtMostEightTokensAreShown) {
  LensAnswer answer = TwoHeads();
  answer.heads[1].slots.assign(20, {2, 0.05f, 0, 0.05f});
  const std::string text = LensText(answer, 1).value();
  EXPECT_EQ(std::ranges::count(text, '\n'), 2 + 8);
}

TEST(LensTextTest, InconsistentAnswerIsRefused) {
  LensAnswer answer = TwoHeads();
  answer.heads[1].slots[2].slot = 5;
  EXPECT_THAT(LensText(answer, 1).status().message(), HasSubstr("slot 5"));
  answer.heads[1].slots[2].slot = -1;
  EXPECT_FALSE(LensText(answer, 1).ok());
  answer.heads.clear();
  EXPECT_FALSE(LensText(answer, 1).ok());
}

}  // namespace
}  // namespace diffserve
