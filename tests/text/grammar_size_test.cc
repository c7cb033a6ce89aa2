// SPDX-License-Identifier: Apache-2.0
// Large forms: each is answered, or refused before any work.
#include <random>
#include <string>

#include "tests/testing/text/grammar_fixture.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using GrammarSizeTest = GrammarFixture;

std::string Joined(int count, const char* with, const std::function<std::string(int)>& part) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? with : "") + part(i);
  return text;
}

// An object with `count` optional members.
std::string Object(const std::string& prefix, int count, const std::string& member = "{}") {
  return R"({"type":"object","additionalProperties":false,"properties":{)" +
         Joined(count, ",",
                [&](int i) { return '"' + prefix + std::to_string(i) + "\":" + member; }) +
         "}}";
}

std::string AnyOf(int count, const std::function<std::string(int)>& part) {
  return R"({"anyOf":[)" + Joined(count, ",", part) + "]}";
}

std::string AnyOfObjects(int alternatives, int members) {
  return AnyOf(alternatives, [&](int i) { return Object("p" + std::to_string(i) + "_", members); });
}

TEST_F(GrammarSizeTest, ManyAlternativesAndMembersAreAnswered) {
  for (const std::string& schema :
       {AnyOfObjects(120, 3), AnyOfObjects(80, 10), AnyOfObjects(1000, 1), Object("p", 1000),
        AnyOf(80, [](int i) { return Object("p", 1 + i % 10); }),
        R"({"type":"object","properties":{"a":)" + AnyOfObjects(120, 3) +
            R"(},"required":["a"],"additionalProperties":false})"}) {
    const std::unique_ptr<TokenConstraint> constraint = Make(Kind::kJsonSchema, schema);
    ASSERT_NE(constraint, nullptr) << schema.substr(0, 100);
    for (uint64_t seed = 1; seed <= 3; ++seed) WalkOf(*constraint->Clone(), seed);
  }
}

TEST_F(GrammarSizeTest, FormsWithTooManyWaysToGoOnAreRefusedBeforeTheirWork) {
  for (const std::string& schema :
       {AnyOfObjects(1000, 3), AnyOfObjects(100, 90),
        R"({"type":"object","properties":{"a":)" + AnyOfObjects(100, 90) +
            R"(},"required":["a"],"additionalProperties":false})"})
    EXPECT_THAT(SchemaRefusal(schema), HasSubstr("allowed: at most 4000"));
  EXPECT_THAT(SchemaRefusal(Object("p", 1001)), HasSubstr("1001 entries; allowed: at most 1000"));
  const std::string lark = "start: /[0-9]{5}/ x\nx: " + Joined(5000, " | ", [](int i) {
                             return "\"a\" \"b" + std::to_string(i) + '"';
                           });
  EXPECT_THAT(Refusal(Kind::kLark, lark), HasSubstr("allowed: at most 4000"));
}

// What a required call of 1,024 tools is held to.
TEST_F(GrammarSizeTest, ThousandSchemasInOneGrammarAreAnswered) {
  const auto number = [](int i) { return std::to_string(i); };
  const std::string calls = Joined(1024, " | ", [&](int i) { return "call" + number(i); });
  const std::string rules = Joined(1024, "\n", [&](int i) {
    return "call" + number(i) + ": \"{'f" + number(i) + "': \" a" + number(i) + " \"}\"\na" +
           number(i) + ": %json " + Object("p" + number(i) + "_", 2, R"({"type":"integer"})");
  });
  const std::string lark = "start: \"[\" call (\", \" call){0,3} \"]\"\ncall: " + calls + "\n" +
                           rules;
  EXPECT_TRUE(Accepts(Kind::kLark, lark, "[{'f1023': {\"p1023_0\": 12}}, {'f0': {}}]"));
  EXPECT_FALSE(Accepts(Kind::kLark, lark, "[{'f1023': {\"p1022_0\": 12}}]"));
  const std::string n30(30, '7');
  EXPECT_FALSE(Accepts(Kind::kLark, lark, "[{'f1023': {\"p1023_0\": " + n30 + "}}]"));
  const std::unique_ptr<TokenConstraint> constraint = Make(Kind::kLark, lark);
  for (uint64_t seed = 1; seed <= 3; ++seed) WalkOf(*constraint->Clone(), seed);
}

TEST_F(GrammarSizeTest, TooManySchemasWithALimitOfTokensAreRefusedWithTheReason) {
  const std::string lark = "start: " +
                           Joined(300, " | ", [](int i) { return "a" + std::to_string(i); }) +
                           "\n" + Joined(300, "\n", [](int i) {
                             return "a" + std::to_string(i) +
                                    "[max_tokens=9]: %json {\"const\":" + std::to_string(i) + "}";
                           });
  EXPECT_THAT(Refusal(Kind::kLark, lark), HasSubstr("at most 254 schemas"));
}

// A form of random parts near the limits.
class RandomForm {
 public:
  explicit RandomForm(uint64_t seed) : random_(seed) {}

  std::string Schema(int depth) {
    switch (depth > 2 ? Below(4) : Below(8)) {
      case 0:
        return R"({"type":"string","maxLength":)" + std::to_string(Below(65537)) + "}";
      case 1:
        return R"({"type":"string","pattern":"^([a-z]{1,)" + std::to_string(1 + Below(200)) +
               R"(},){0,)" + std::to_string(1 + Below(50)) + R"(}$"})";
      case 2:
        return R"({"enum":[)" +
               Joined(1 + Below(1000), ",",
                      [](int i) { return "\"value " + std::to_string(i * i) + '"'; }) +
               "]}";
      case 3:
        return R"({"type":"number","minimum":)" + std::to_string(Below(1000)) + "}";
      case 4:
        return R"({"type":"array","maxItems":)" + std::to_string(Below(4097)) + R"(,"items":)" +
               Schema(depth + 1) + "}";
      case 5:
        return AnyOf(1 + Below(150), [&](int i) {
          return Object("p" + std::to_string(i % 7) + "_", 1 + Below(12));
        });
      default:
        return Object("m", 1 + Below(300), Schema(depth + 1));
    }
  }

 private:
  int Below(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }

  std::mt19937_64 random_;
};

TEST_F(GrammarSizeTest, RandomFormsNearTheLimitsAreAnsweredOrRefused) {
  int answered = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const std::string schema = RandomForm(seed).Schema(0);
    const Result<std::unique_ptr<TokenConstraint>> made = Compile(Kind::kJsonSchema, schema);
    if (!made.ok()) {
      EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument) << schema.substr(0, 200);
      continue;
    }
    ++answered;
    std::mt19937_64 random(seed);
    for (int token = 0; token < 60; ++token) {
      const std::vector<int32_t> allowed = Allowed(**made);
      ASSERT_FALSE(allowed.empty()) << seed;
      const int32_t drawn = allowed[random() % allowed.size()];
      if (drawn == eos_) break;
      const Status status = (*made)->Accept(drawn);
      ASSERT_TRUE(status.ok()) << seed << ": " << status.message();
    }
  }
  EXPECT_GT(answered, 20);
}

}  // namespace
}  // namespace diffserve
