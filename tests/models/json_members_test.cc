// SPDX-License-Identifier: Apache-2.0
#include "models/convert/json_members.h"

#include <gtest/gtest.h>

namespace diffserve {
namespace {

TEST(JsonMembersTest, EditsLeaveEveryOtherByte) {
  const auto edited = [](std::string_view text) {
    const Result<std::string> result = EditMembers(
        text, "FILE", {{"gone", std::nullopt}, {"dtype", "\"x\"", true}, {"set", "1"}});
    return result.ok() ? *result : result.status().message();
  };
  EXPECT_EQ(edited("{}"), "{\"dtype\": \"x\"}");
  EXPECT_EQ(edited(" {\"gone\":{\"a\":[1,{\"gone\":2}]}} \n"), " {\"dtype\": \"x\"} \n");
  EXPECT_EQ(edited("{\n  \"gone\": 1,\n  \"a\" : 1.50e-05\n}\n"),
            "{\n  \"a\" : 1.50e-05, \"dtype\": \"x\"\n}\n");
  EXPECT_EQ(edited("{\n  \"a\": \"}\\\",{\",\n  \"b\": [\"]\"],\n  \"gone\": null\n}"),
            "{\n  \"a\": \"}\\\",{\",\n  \"b\": [\"]\"],\n  \"dtype\": \"x\"\n}");
  EXPECT_EQ(edited("{\"dtype\": \"float32\" , \"set\":{\"x\":{}}}"),
            "{\"dtype\": \"x\" , \"set\":1}");
  EXPECT_EQ(edited("{\"a\": 1,}"), "FILE: not valid JSON at byte 9");
  EXPECT_EQ(edited("{\"\\u0067one\": 1}"), "FILE: has a key with escapes; allowed: plain keys");
  EXPECT_EQ(edited("[1]"), "FILE: is [1]; allowed: one JSON object");
}

}  // namespace
}  // namespace diffserve
