// SPDX-License-Identifier: Apache-2.0
#include "engine/text/grammar.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "tests/testing/text/grammar_fixture.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using GrammarTest = GrammarFixture;

bool IsPerson(const std::string& text) {
  const auto value = nlohmann::json::parse(text, nullptr, false);
  if (!value.is_object() || !value.contains("name") || !value.contains("age")) return false;
  const int64_t age = value["age"].get<int64_t>();
  const auto kinds = nlohmann::json::parse(R"(["a","b",3,null])");
  return value["name"].is_string() && value["age"].is_number_integer() && age >= 0 && age <= 150 &&
         (!value.contains("kind") || std::ranges::find(kinds, value["kind"]) != kinds.end()) &&
         value.size() == 2 + value.count("kind");
}

TEST_F(GrammarTest, WalksOfASchemaParseAndValidate) {
  ExpectWalks(Kind::kJsonSchema, kPerson, IsPerson);
}

TEST_F(GrammarTest, WalksOfAListOfNumbersKeepItsBounds) {
  ExpectWalks(Kind::kJsonSchema,
              R"({"type":"array","items":{"type":"number","minimum":-1.5,"exclusiveMaximum":2},)"
              R"("minItems":2,"maxItems":5})",
              [](const std::string& text) {
                const auto list = nlohmann::json::parse(text, nullptr, false);
                return list.is_array() && list.size() >= 2 && list.size() <= 5 &&
                       std::ranges::all_of(list, [](const auto& item) {
                         return item.is_number() && item >= -1.5 && item < 2.0;
                       });
              });
}

TEST_F(GrammarTest, WalksOfARecursiveSchemaValidate) {
  const std::function<bool(const nlohmann::json&)> is_tree = [&](const nlohmann::json& value) {
    return value.is_object() && value.contains("v") && value["v"].is_boolean() &&
           (!value.contains("next") || is_tree(value["next"]));
  };
  ExpectWalks(Kind::kJsonSchema,
              R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":)"
              R"({"v":{"type":"boolean"},"next":{"$ref":"#/$defs/tree"}},"required":["v"],)"
              R"("additionalProperties":false}}})",
              [&](const std::string& text) {
                return is_tree(nlohmann::json::parse(text, nullptr, false));
              });
}

TEST_F(GrammarTest, WalksOfAJsonObjectAreObjects) {
  ExpectWalks(Kind::kJsonObject, "", [](const std::string& text) {
    try {
      return nlohmann::json::parse(text).is_object();
    } catch (const nlohmann::json::out_of_range&) {
      return true;  // a number above what a double holds, which JSON has
    } catch (const nlohmann::json::parse_error&) {
      return false;
    }
  });
}

TEST_F(GrammarTest, WalksOfAnExpressionMatchIt) {
  ExpectWalks(Kind::kRegex, "^[A-Z]{2,4}-[0-9]{3}(/[a-c]+)?$", [](const std::string& text) {
    const size_t letters = text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    if (letters < 2 || letters > 4 || text.size() < letters + 4 || text[letters] != '-')
      return false;
    const std::string digits = text.substr(letters + 1, 3), rest = text.substr(letters + 4);
    return digits.find_first_not_of("0123456789") == digits.npos &&
           (rest.empty() ||
            (rest[0] == '/' && rest.size() > 1 && rest.find_first_not_of("abc", 1) == rest.npos));
  });
}

TEST_F(GrammarTest, WalksOfAChoiceGiveOneOfItsStrings) {
  ExpectWalks(Kind::kChoice, R"(["yes","no","yes, but","\"n\u00e4\"\n"])",
              [](const std::string& text) {
                return text == "yes" || text == "no" || text == "yes, but" || text == "\"nä\"\n";
              });
}

TEST_F(GrammarTest, WalksOfLarkFollowIt) {
  ExpectWalks(Kind::kLark, "start: \"<\" %json {\"type\":\"integer\"} \">\" // one\n",
              [](const std::string& text) {
                if (!text.starts_with('<') || !text.ends_with('>') || text.size() < 3) return false;
                std::string_view digits(text.data() + 1, text.size() - 2);
                if (digits.starts_with('-')) digits.remove_prefix(1);
                return !digits.empty() && (digits == "0" || !digits.starts_with('0')) &&
                       digits.find_first_not_of("0123456789") == digits.npos;
              });
}

TEST_F(GrammarTest, WalksOfGbnfFollowIt) {
  const std::string arithmetic =
      "# a sum\n"
      "root ::= expr \"=\" ws answer\n"
      "expr ::= term ([-+*/] term){0,3}\n"
      "term ::= num | \"(\" expr \")\"\n"
      "num  ::= [0-9]+ ws | \"\\x41\"\n"
      "answer ::= num |\n  \"none\"\n"
      "ws ::= [ \\t]{0,2}\n";
  ExpectWalks(Kind::kEbnf, arithmetic, [](const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == text.npos || text.find('=', equals + 1) != text.npos) return false;
    const std::string answer = text.substr(equals + 1);
    return text.find_first_not_of("-+*/()0123456789A \t=none") == text.npos &&
           std::ranges::count(text, '(') == std::ranges::count(text, ')') &&
           (answer.ends_with("none") || answer.find_first_of("0123456789A") != answer.npos);
  });
  EXPECT_TRUE(Accepts(Kind::kEbnf, arithmetic, "(1+2)*A= 7"));
  EXPECT_TRUE(Accepts(Kind::kEbnf, arithmetic, "1=none"));
  EXPECT_FALSE(Accepts(Kind::kEbnf, arithmetic, "(1+2=3"));
}

TEST_F(GrammarTest, StructuralTagConstrainsOnlyAfterItsTrigger) {
  const std::string tag =
      R"({"structures":[{"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"},)"
      R"({"begin":"<f=b>","schema":{"const":"x"},"end":"</f>"}],"triggers":["<f="]})";
  EXPECT_TRUE(Accepts(Kind::kStructuralTag, tag, "just text"));
  EXPECT_TRUE(Accepts(Kind::kStructuralTag, tag, "so <f=a>12</f> and <f=b>\"x\"</f>."));
  EXPECT_FALSE(Accepts(Kind::kStructuralTag, tag, "so <f=a>twelve</f>"));
  EXPECT_FALSE(Accepts(Kind::kStructuralTag, tag, "so <f=c>1</f>"));
  EXPECT_FALSE(Accepts(Kind::kStructuralTag, tag, "<f=a>12"));
  EXPECT_THAT(Refusal(Kind::kStructuralTag, R"({"form":{}})"), HasSubstr("'form'"));
  EXPECT_THAT(Refusal(Kind::kStructuralTag,
                      R"({"structures":[{"begin":"a","schema":{},"end":"b"}],"triggers":["c"]})"),
              HasSubstr("begins with none of the triggers"));
}

// A structural tag's formats, after xgrammar's own.
std::string Tag(const char* begin, const char* content, const char* end) {
  return R"({"type":"tag","begin":")" + std::string(begin) + R"(","content":)" + content +
         R"(,"end":")" + end + "\"}";
}

TEST_F(GrammarTest, StructuralTagHasFormatsWithinFormats) {
  const std::string number = Tag(
      "<f=a>", R"({"type":"json_schema","json_schema":{"type":"integer"}})", "</f>");
  const std::string thought = Tag("<t>", R"({"type":"any_text"})", "</t>");
  const std::string triggered = R"({"type":"triggered_tags","triggers":["<f="],"tags":[)" + number +
                                "]";
  const std::string separated = R"({"type":"tags_with_separator","separator":",","tags":[)" +
                                number + "]";
  const std::string a = R"({"type":"const_string","value":"a"})";
  const auto content = [&](const char* type) {
    return R"({"type":")" + std::string(type) + R"(","content":)" + a + "}";
  };
  const std::vector<std::tuple<std::string, std::vector<const char*>, std::vector<const char*>>>
      kFormats = {
          {a, {"a"}, {"", "aa"}},
          {R"({"type":"json_schema","json_schema":{"type":"integer"}})", {"12"}, {"x", ""}},
          {R"({"type":"regex","pattern":"a+b?"})", {"aab"}, {"b"}},
          {R"({"type":"grammar","grammar":"root ::= \"x\" y*\ny ::= \"y\""})", {"xyy"}, {"y"}},
          {R"({"type":"any_text"})", {"", "one 1"}, {}},
          {R"({"type":"any_text","excludes":["<t>"]})", {"", "<t"}, {"a<t>b"}},
          {thought, {"<t>x y</t>", "<t></t>"}, {"<t>x", "<t>x</t>y"}},
          {R"({"type":"sequence","elements":[)" + a + "," + thought + "]}", {"a<t></t>"}, {"a"}},
          {R"({"type":"or","elements":[)" + a + "," + thought + "]}", {"a", "<t></t>"}, {"b"}},
          {triggered + "}", {"", "x", "x<f=a>1</f>y<f=a>2</f>"}, {"<f=a>x</f>", "<f=b>"}},
          {triggered + R"(,"at_least_one":true})", {"<f=a>1</f> x"}, {"", "x", "x<f=a>1</f>"}},
          {triggered + R"(,"stop_after_first":true})", {"", "x", "x<f=a>1</f>"}, {"<f=a>1</f>x"}},
          {separated + "}", {"", "<f=a>1</f>,<f=a>2</f>"}, {"<f=a>1</f>,", "<f=a>1</f><f=a>2</f>"}},
          {separated + R"(,"at_least_one":true,"stop_after_first":true})",
           {"<f=a>1</f>"},
           {"", "<f=a>1</f>,<f=a>1</f>"}},
          {Tag("<o>", (triggered + "}").c_str(), "</o>"),
           {"<o>x<f=a>1</f></o>", "<o></o>"},
           {"<o><f=a>x</f></o>", "<o></o>x"}},
          {content("optional"), {"", "a"}, {"aa"}},
          {content("star"), {"", "aaa"}, {"b"}},
          {content("plus"), {"aaa"}, {""}},
          {R"({"type":"repeat","min":1,"max":2,"content":)" + a + "}", {"a", "aa"}, {"", "aaa"}}};
  for (const auto& [format, right, wrong] : kFormats) {
    const std::string tag = R"({"type":"structural_tag","format":)" + format + "}";
    for (const char* text : right)
      EXPECT_TRUE(Accepts(Kind::kStructuralTag, tag, text)) << format << " " << text;
    for (const char* text : wrong)
      EXPECT_FALSE(Accepts(Kind::kStructuralTag, tag, text)) << format << " " << text;
  }
  for (const auto& [format, why] : std::vector<std::pair<std::string, const char*>>{
           {R"({"type":"sequence","elements":[{"type":"any_text"},)" + a + "]}", "elements[0]"},
           {R"({"type":"token","token":1})", "format.type"},
           {R"({"type":"json_schema","json_schema":{},"style":"qwen_xml"})", "format.style"},
           {R"({"type":"json_schema","json_schema":{"if":{}}})", "format.json_schema: #: if"},
           {R"({"type":"or","elements":[]})", "format.elements"},
           {"{}", "format.type"}}) {
    EXPECT_THAT(Refusal(Kind::kStructuralTag, R"({"format":)" + format + "}"), HasSubstr(why));
  }
}

TEST_F(GrammarTest, PropertiesComeInTheOrderOfTheSchema) {
  const char* schema = R"({"type":"object","properties":{"z":{"const":1},"a":{"const":2}},)"
                       R"("required":["z","a"]})";
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, schema, R"({"z": 1, "a": 2})"));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, R"({"a": 2, "z": 1})"));
}

TEST_F(GrammarTest, EscapedNamesAreDistinguished) {
  const char* schema = R"({"type":"object","properties":{"a":{"const":1}}})";
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, schema, R"({"b": "x"})"));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, R"({"a": "x"})"));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, R"({"\u0061": "x"})"));
}

TEST_F(GrammarTest, DatesMustExistInTheCalendar) {
  const char* schema = R"({"type":"string","format":"date"})";
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, schema, "\"2024-02-29\""));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, schema, "\"2000-02-29\""));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, "\"2023-02-29\""));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, "\"1900-02-29\""));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, "\"0000-01-01\""));
}

TEST_F(GrammarTest, CloneEqualsAReplay) {
  const std::unique_ptr<TokenConstraint> first = Make(Kind::kJsonSchema, kPerson);
  ASSERT_NE(first, nullptr);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Walk walk = WalkOf(*first->Clone(), seed);
    if (walk.ended) walk.tokens.push_back(eos_);
    const size_t kept = walk.tokens.size() / 2;
    const std::unique_ptr<TokenConstraint> replayed = first->Clone();
    for (size_t i = 0; i < kept; ++i) ASSERT_TRUE(replayed->Accept(walk.tokens[i]).ok());
    const std::unique_ptr<TokenConstraint> copy = replayed->Clone();
    for (size_t i = kept; i < walk.tokens.size(); ++i) {
      EXPECT_EQ(MaskOf(*copy), MaskOf(*replayed));
      for (TokenConstraint* each : {replayed.get(), copy.get()})
        ASSERT_TRUE(each->Accept(walk.tokens[i]).ok());
    }
    EXPECT_EQ(MaskOf(*copy), MaskOf(*replayed));
  }
}

TEST_F(GrammarTest, ForbiddenTokenIsAnError) {
  const std::unique_ptr<TokenConstraint> constraint = Make(Kind::kChoice, R"(["yes"])");
  ASSERT_NE(constraint, nullptr);
  EXPECT_FALSE(constraint->Clone()->Accept(eos_).ok());
  EXPECT_FALSE(constraint->Clone()->Accept(tokenizer_->Encode("no", false).value()[0]).ok());
  EXPECT_FALSE(constraint->Clone()->Accept(vocab_size_ - 1).ok());
  EXPECT_FALSE(constraint->Clone()->Accept(vocab_size_ + 7).ok());
  EXPECT_FALSE(constraint->Clone()->Accept(-1).ok());
}

TEST_F(GrammarTest, EndTokenMayRepeat) {
  const std::unique_ptr<TokenConstraint> constraint = Make(Kind::kChoice, R"(["yes"])");
  ASSERT_NE(constraint, nullptr);
  EXPECT_TRUE(Accepts(*constraint, "yes"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Allowed(*constraint), ::testing::ElementsAre(eos_));
    EXPECT_TRUE(constraint->Accept(eos_).ok());
  }
}

TEST_F(GrammarTest, SameGrammarIsCompiledOnce) {
  const auto compiler = GrammarCompiler::Make(*tokenizer_, vocab_size_, {eos_}).value();
  const GrammarSpec spec{Kind::kJsonSchema, kPerson, "guided_json"};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] { EXPECT_TRUE(compiler->Compile(spec).ok()); });
  threads.clear();
  EXPECT_EQ(compiler->stats().compiled, 1u);
  EXPECT_EQ(compiler->stats().cache_hits, 3u);
  const GrammarSpec wrong{Kind::kJsonSchema, "{", "guided_json"};
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(compiler->Compile(wrong).ok());
  EXPECT_EQ(compiler->stats().compiled, 2u);
}

TEST_F(GrammarTest, CacheKeepsTheMostRecentlyUsed) {
  GrammarLimits limits;
  limits.max_cache_bytes = 1;
  const auto compiler = GrammarCompiler::Make(*tokenizer_, vocab_size_, {eos_}, limits).value();
  for (const char* text : {R"(["a"])", R"(["b"])", R"(["a"])"})
    EXPECT_TRUE(compiler->Compile({Kind::kChoice, text, "guided_choice"}).ok());
  EXPECT_EQ(compiler->stats().compiled, 3u);
  EXPECT_EQ(compiler->stats().cache_bytes, 0u);
}

// The time of an answer would tell a client that another one has used its schema.
TEST_F(GrammarTest, EachClientHasItsOwnCache) {
  const auto compiler = GrammarCompiler::Make(*tokenizer_, vocab_size_, {eos_}).value();
  const GrammarSpec spec{Kind::kJsonSchema, kPerson, "guided_json"};
  for (const char* const client : {"key:0", "key:1", "key:1", "key:0"})
    EXPECT_TRUE(compiler->Compile(spec, {}, client).ok());
  EXPECT_EQ(compiler->stats().compiled, 2u);
  EXPECT_EQ(compiler->stats().cache_hits, 2u);
}

TEST_F(GrammarTest, ClientThatHoldsMostLosesFirst) {
  const GrammarSpec kept{Kind::kChoice, R"(["kept"])", "guided_choice"};
  GrammarLimits limits;
  {
    const auto compiler = GrammarCompiler::Make(*tokenizer_, vocab_size_, {eos_}).value();
    EXPECT_TRUE(compiler->Compile(kept, {}, "key:0").ok());
    limits.max_cache_bytes = 8 * compiler->stats().cache_bytes;
  }
  const auto compiler = GrammarCompiler::Make(*tokenizer_, vocab_size_, {eos_}, limits).value();
  EXPECT_TRUE(compiler->Compile(kept, {}, "key:0").ok());
  for (int i = 0; i < 40; ++i) {
    const GrammarSpec next{Kind::kChoice, R"(["n)" + std::to_string(i) + "\"]", "guided_choice"};
    EXPECT_TRUE(compiler->Compile(next, {}, "key:1").ok());
    EXPECT_LE(compiler->stats().cache_bytes, limits.max_cache_bytes);
  }
  EXPECT_TRUE(compiler->Compile(kept, {}, "key:0").ok());
  EXPECT_EQ(compiler->stats().cache_hits, 1u) << "another client's grammars pushed nothing out";
}

TEST_F(GrammarTest, LimitErrorsNameTheLimit) {
  GrammarLimits limits;
  limits.max_text_bytes = 10;
  limits.max_compiled_bytes = 10;
  const auto compiler = GrammarCompiler::Make(*tokenizer_, vocab_size_, {eos_}, limits).value();
  const auto long_text = compiler->Compile({Kind::kRegex, "abcdefghijk", "guided_regex"});
  EXPECT_THAT(long_text.status().message(), HasSubstr("11 bytes; allowed: at most 10"));
  EXPECT_EQ(long_text.status().param(), "guided_regex");
  EXPECT_THAT(compiler->Compile({Kind::kRegex, "abc", "guided_regex"}).status().message(),
              HasSubstr("allowed: at most 10"));
}

TEST(GrammarCompilerTest, TokenizerMustProvideTokenBytes) {
  const std::unique_ptr<Tokenizer> suffixes = LoadTokenizerFixture("suffix_bpe");
  const auto made = GrammarCompiler::Make(*suffixes, suffixes->vocab_size(), {0});
  EXPECT_EQ(made.status().code(), StatusCode::kUnimplemented);
  const std::unique_ptr<Tokenizer> bytes = LoadTokenizerFixture("byte_bpe");
  EXPECT_FALSE(GrammarCompiler::Make(*bytes, bytes->vocab_size(), {}).ok());
  EXPECT_FALSE(GrammarCompiler::Make(*bytes, bytes->vocab_size(), {1 << 20}).ok());
}

}  // namespace
}  // namespace diffserve
