// SPDX-License-Identifier: Apache-2.0
// The whitespace that may come between the tokens of JSON.
#include <optional>
#include <string>

#include "tests/testing/text/grammar_fixture.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class GrammarWhitespaceTest : public GrammarFixture {
 protected:
  static constexpr char kSchema[] =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
          "required":["a","b"],"additionalProperties":false})";

  static GrammarSpec Spec(std::optional<std::string> whitespace, Kind kind = Kind::kJsonSchema,
                          const std::string& text = kSchema) {
    return {.kind = kind, .text = text, .whitespace = std::move(whitespace)};
  }
  // Whether {"a":1,"b":2} may have this text at each place for whitespace.
  static bool Takes(const std::optional<std::string>& whitespace, const std::string& space) {
    return TakesOnly(whitespace, space) &&
           Has(Spec(whitespace), "{" + space + "\"a\"" + space + ":" + space + "1" + space + "," +
                                     space + "\"b\"" + space + ":" + space + "2" + space + "}");
  }
  // The same for one place.
  static bool TakesOnly(const std::optional<std::string>& whitespace, const std::string& space) {
    return Has(Spec(whitespace), "{" + space + "\"a\":1,\"b\":2}");
  }
  static bool Has(const GrammarSpec& spec, const std::string& text) {
    const auto made = compiler_->Compile(spec);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() && Accepts(**made, text);
  }
  static std::string RefusalOf(const std::string& pattern) {
    const auto made = compiler_->Compile(Spec(pattern));
    EXPECT_FALSE(made.ok()) << pattern;
    EXPECT_EQ(made.status().param(), "whitespace_pattern");
    EXPECT_THAT(made.status().message(), StartsWith("whitespace_pattern "));
    return made.status().message();
  }
};

// llama.cpp's rule: | " " | "\n"{1,2} [ \t]{0,20}
TEST_F(GrammarWhitespaceTest, UsuallyASpaceOrALineEndWithAnIndent) {
  for (const std::string space : {"", " ", "\n", "\n\n", "\n  ", "\n\t\t", "\n\n \t"})
    EXPECT_TRUE(Takes(std::nullopt, space)) << space;
  for (const std::string space : {"  ", "\t", "\r", "\r\n", " \n", "\n\n\n", "\n \n", "\n\r"})
    EXPECT_FALSE(TakesOnly(std::nullopt, space)) << space;
  EXPECT_TRUE(Takes(std::nullopt, "\n" + std::string(20, ' ')));
  EXPECT_FALSE(TakesOnly(std::nullopt, "\n" + std::string(21, ' ')));
}

TEST_F(GrammarWhitespaceTest, RuleHoldsForAllJson) {
  const std::string right = "{\n  \"a\": 1, \"b\": 2\n}", wrong = "{\t\"a\": 1, \"b\": 2}";
  const std::string lark = std::string("start: j\nj: %json ") + kSchema + "\n";
  const std::string tag = R"({"format":{"type":"json_schema","json_schema":)" +
                          std::string(kSchema) + "}}";
  for (const GrammarSpec& spec :
       {Spec({}), Spec({}, Kind::kJsonObject, ""), Spec({}, Kind::kLark, lark),
        Spec({}, Kind::kStructuralTag, tag)}) {
    EXPECT_TRUE(Has(spec, right));
    EXPECT_FALSE(Has(spec, wrong));
    GrammarSpec none = spec, tabs = spec;
    none.whitespace = "";
    tabs.whitespace = "\t";
    EXPECT_FALSE(Has(none, right));
    EXPECT_TRUE(Has(none, "{\"a\":1,\"b\":2}"));
    EXPECT_FALSE(Has(tabs, right));
    EXPECT_TRUE(Has(tabs, "{\t\"a\":1,\"b\":2}"));
  }
}

TEST_F(GrammarWhitespaceTest, EmptyPatternMeansNone) {
  EXPECT_TRUE(Takes("", ""));
  for (const std::string space : {" ", "\n"}) EXPECT_FALSE(TakesOnly("", space)) << space;
}

TEST_F(GrammarWhitespaceTest, PatternSaysWhatMayCome) {
  struct Case {
    const char* pattern;
    std::vector<std::string> right, wrong;
  };
  for (const Case& each : std::vector<Case>{
           {"[ ]?", {"", " "}, {"  ", "\n"}},
           {"[\\n\\t ]*", {"", " \n\t ", "\t"}, {"\r"}},
           {"\\s{0,3}", {"", " \r\n"}, {"    "}},
           {"\\n( {2})*", {"", "\n", "\n    "}, {"\n   ", " "}},
           {"( ?\\n?)(\\t?)", {"", " \n\t", "\n", "\t", " \t"}, {"\n ", "\t\n"}},
           {"(a?){0}| ", {"", " "}, {"a"}},
           {"()", {""}, {" "}},
       }) {
    for (const std::string& space : each.right)
      EXPECT_TRUE(Takes(each.pattern, space)) << each.pattern << ": '" << space << "'";
    for (const std::string& space : each.wrong)
      EXPECT_FALSE(TakesOnly(each.pattern, space)) << each.pattern << ": '" << space << "'";
  }
}

TEST_F(GrammarWhitespaceTest, PatternOfOtherTextIsRefusedByItsName) {
  EXPECT_THAT(RefusalOf("a"), HasSubstr("matches 'a'"));
  EXPECT_THAT(RefusalOf(" |[a-z]"), HasSubstr("class without spaces"));
  EXPECT_THAT(RefusalOf("^ $"), HasSubstr("anchor"));
  EXPECT_THAT(RefusalOf("["), HasSubstr("not a regular expression"));
  EXPECT_THAT(RefusalOf(" {2000}"), HasSubstr("at most 1000"));
  EXPECT_THAT(RefusalOf(std::string(101, ' ')), HasSubstr("at most 100"));
  EXPECT_THAT(RefusalOf("((( ?\\n?)( ?\\n?))(( ?\\n?)( ?\\n?)))(( ?\\n?)( ?\\n?))"),
              HasSubstr("too many parts"));
}

TEST_F(GrammarWhitespaceTest, NumbersStayWithinTheirDigits) {
  const std::string digits(21, '1');
  for (const std::optional<std::string>& whitespace :
       {std::optional<std::string>(), std::optional<std::string>(" ")}) {
    const GrammarSpec lark = Spec(whitespace, Kind::kLark,
                                  std::string("start: j\nj: %json {\"type\":\"number\"}\n"));
    EXPECT_TRUE(Has(lark, digits.substr(1)));
    EXPECT_FALSE(Has(lark, digits));
  }
}

}  // namespace
}  // namespace diffserve
