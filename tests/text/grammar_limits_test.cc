// SPDX-License-Identifier: Apache-2.0
// The limits of grammars: refusals by name, and the cost of hostile grammars.
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>

#include "tests/testing/text/grammar_fixture.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using GrammarLimitsTest = GrammarFixture;

TEST_F(GrammarLimitsTest, UnenforcedKeywordsAreRefusedByNameAndPath) {
  for (const char* keyword : {R"("not":{"type":"string"})",
                              R"("if":{})",
                              R"("uniqueItems":true)",
                              R"("contains":{})",
                              R"("propertyNames":{"contains":1})",
                              R"("dependentRequired":{})",
                              R"("dependentSchemas":{})",
                              R"("unevaluatedProperties":{})",
                              R"("unevaluatedItems":false)",
                              R"("minContains":1)",
                              R"("$dynamicRef":"#a")",
                              R"("maxlength":3)",
                              R"("x-guidance":{"lenient":true})",
                              R"("$ref":"b")",
                              R"("$ref":"http://a/b")",
                              R"("$ref":"#/$defs/none")",
                              R"("pattern":"[a&&b]")",
                              R"("pattern":"(?i)a")",
                              R"("const":9007199254740993)",
                              R"("enum":["\u0001"])"}) {
    const std::string text(keyword);
    const std::string name = text.substr(1, text.find('"', 1) - 1);
    const std::string message = SchemaRefusal(
        R"({"type":"object","properties":{"p/q":{"title":"t",)" + text + "}}}");
    EXPECT_THAT(message, HasSubstr("#/properties/p~1q: " + name)) << text;
  }
  EXPECT_THAT(SchemaRefusal(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"),
              HasSubstr("oneOf"));
  EXPECT_THAT(SchemaRefusal(R"({"type":"object","minProperties":3})"), HasSubstr("minProperties"));
}

TEST_F(GrammarLimitsTest, AnnotationsChangeNothing) {
  const char* schema =
      R"({"$schema":"http://json-schema.org/draft-07/schema#","$id":"a","title":"t","x-a":1,)"
      R"("description":"d","default":7,"examples":[1],"$comment":"c","deprecated":true,)"
      R"("uniqueItems":false,"const":3})";
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, schema, "3"));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, "7"));
}

TEST_F(GrammarLimitsTest, TextForWhichNoThreadCouldBeStartedIsCompiledLater) {
  for (const char* sanitizer : {"__asan_init", "__tsan_init"}) {
    if (dlsym(RTLD_DEFAULT, sanitizer) != nullptr) GTEST_SKIP() << "it ends the process first";
  }
  const char* schema = R"({"const":"a"})";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t used = pages * static_cast<uint64_t>(getpagesize());
  const rlimit less_than_a_stack = {.rlim_cur = used + (32 << 20), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &less_than_a_stack), 0);
  const auto refused = Compile(Kind::kJsonSchema, schema);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("no thread could be started"));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, schema, R"("a")"));
}

TEST_F(GrammarLimitsTest, RefusesContradictions) {
  for (const auto& [schema, name] : std::vector<std::pair<const char*, const char*>>{
           {R"({"type":"string","minLength":3,"maxLength":2})", "minLength"},
           {R"({"type":"integer","minimum":3,"maximum":2})", "minimum"},
           {R"({"type":"number","exclusiveMinimum":2,"maximum":2})", "exclusiveMinimum"},
           {R"({"type":"array","minItems":2,"maxItems":1})", "minItems"},
           {R"({"type":"object","minProperties":2,"maxProperties":1})", "minProperties"},
           {R"({"enum":[]})", "enum"},
           {R"({"multipleOf":0})", "multipleOf"},
           {R"({"type":[]})", "type"},
           {"false", "nothing satisfies"}}) {
    EXPECT_THAT(SchemaRefusal(schema), HasSubstr(name)) << schema;
  }
  EXPECT_NE(SchemaRefusal(R"({"type":"integer","enum":["a"]})"), "compiled");
  EXPECT_NE(SchemaRefusal(R"({"allOf":[{"type":"integer"},{"type":"string"}]})"), "compiled");
}

TEST_F(GrammarLimitsTest, InvalidGrammarsAreRefused) {
  EXPECT_THAT(SchemaRefusal("{"), HasSubstr("not JSON"));
  // Expressions that Python's re, llguidance or llama.cpp refuse, or that match only the empty
  // text.
  for (const char* regex : {"\\", "a\\", "(a", "a)", "", "^$", "()", "|", "a(?=b)", "(?<!a)b",
                            "(a)\\1", "[a", "[z-a]", "a{3,2}", "*a", "\\q", "\\x"})
    EXPECT_NE(Refusal(Kind::kRegex, regex), "compiled") << regex;
  for (const char* grammar : {"",
                              " \n",
                              "# a comment",
                              "root ::=",
                              "root ::= \n",
                              "root ::= \"\"",
                              "root ::= x\nx ::= \"\"",
                              "root ::= ()",
                              "root ::= root",
                              "root ::= (",
                              "root ::= \"a\" )",
                              "root ::= \"a",
                              "root ::= [a",
                              "root ::= [z-a]",
                              "root ::= *",
                              "root ::= \"a\"{3,2}",
                              "root ::= \"a\"{0}",
                              "root ::= \"\\q\"",
                              "root := \"a\"",
                              "x ::= \"a\""})
    EXPECT_NE(Refusal(Kind::kEbnf, grammar), "compiled") << grammar;
  for (const char* grammar : {"", "start:", "start: \"\"", "start: start"})
    EXPECT_NE(Refusal(Kind::kLark, grammar), "compiled") << grammar;
  EXPECT_THAT(Refusal(Kind::kRegex, "a\\"), HasSubstr("escapes nothing"));
  EXPECT_THAT(Refusal(Kind::kEbnf, "root ::="), HasSubstr("no text but the empty one"));
  EXPECT_NE(Refusal(Kind::kRegex, "[^\\x{0}-\\x{10FFFF}]"), "compiled");
  EXPECT_NE(Refusal(Kind::kChoice, R"({"a":1})"), "compiled");
  EXPECT_NE(Refusal(Kind::kChoice, "[]"), "compiled");
  EXPECT_NE(Refusal(Kind::kChoice, R"([""])"), "compiled");
  EXPECT_NE(Refusal(Kind::kLark, "start: other"), "compiled");
  EXPECT_NE(Refusal(Kind::kLark, "start: start \"a\""), "compiled");
  EXPECT_THAT(Refusal(Kind::kLark, "start: %json {\"contains\":{}}"), HasSubstr("#: contains"));
  EXPECT_THAT(Refusal(Kind::kLark, "start: a\na[temperature=2]: /b/"), HasSubstr("temperature"));
  EXPECT_THAT(Refusal(Kind::kEbnf, "rot ::= \"a\""), HasSubstr("root"));
  EXPECT_THAT(Refusal(Kind::kEbnf, "root ::= other"), HasSubstr("other"));
  EXPECT_THAT(Refusal(Kind::kEbnf, "root ::= \"a\nb\""), HasSubstr("line 1"));
}

// The parts of a text that are JSON of a schema, with what comes before and after them.
TEST_F(GrammarLimitsTest, SchemaNumbersEndWhereverTheirJsonIs) {
  const std::string any = R"({"type":"json_schema","json_schema":{"type":["number","string"]}})";
  const std::string text = R"({"type":"any_text"})",
                    digits = R"({"type":"regex","pattern":"[0-9]{30}"})";
  const auto format = [](const std::string& inner) { return R"({"format":)" + inner + "}"; };
  const auto sequence = [](const std::string& a, const std::string& b) {
    return R"({"type":"sequence","elements":[)" + a + "," + b + "]}";
  };
  const auto tag = [](const std::string& content, const char* end) {
    return R"({"type":"tag","begin":"<f>","content":)" + content + R"(,"end":")" + end + R"("})";
  };
  const auto constant = [](const char* value) {
    return R"({"type":"const_string","value":")" + std::string(value) + R"("})";
  };
  const std::string n30(30, '7');
  const std::string json = R"(%json {"type":["number","string"]})";
  const struct {
    Kind kind;
    std::string grammar, before, after;
  } kCases[] = {
      {Kind::kJsonSchema, R"({"type":["number","string"]})", "", ""},
      {Kind::kStructuralTag,
       R"({"structures":[{"begin":"<f>","schema":{"type":["number","string"]},"end":"</f>"}],)"
       R"("triggers":["<f"]})",
       n30 + " <f>", "</f> " + n30},
      {Kind::kStructuralTag, format(any), "", ""},
      {Kind::kStructuralTag, format(tag(any, "</f>")), "<f>", "</f>"},
      {Kind::kStructuralTag, format(tag(any, "x7")), "<f>", "x7"},
      {Kind::kStructuralTag, format(sequence(constant("a: "), any)), "a: ", ""},
      {Kind::kStructuralTag, format(sequence(digits, sequence(constant(" "), any))), n30 + " ", ""},
      {Kind::kStructuralTag, format(sequence(any, sequence(constant(";"), any))), "1;", ""},
      {Kind::kStructuralTag, format(sequence(any, sequence(constant(";"), digits))), "", ";" + n30},
      {Kind::kStructuralTag, format(sequence(tag(any, ">"), text)), "<f>", ">" + n30},
      {Kind::kStructuralTag,
       format(R"({"type":"triggered_tags","triggers":["<"],"tags":[)" + tag(any, ">") + "]}"),
       n30 + "<f>", ">" + n30},
      {Kind::kLark, "start: " + json, "", ""},
      {Kind::kLark, "start: \"<\" " + json + " \">\"", "<", ">"},
      {Kind::kLark, "start: /[a-z0-9]+/ \": \" " + json + " /;[0-9]+/", n30 + ": ", ";" + n30},
      {Kind::kLark, "start: (\" \" one)+\none: " + json + " // a comment", " 1 ", " \"a\""},
      {Kind::kLark, "start: %lark {\nstart: " + json + "\n}", "", ""},
      {Kind::kLark, "start: /[a-z]+/ \"=\" a\na[max_tokens=400]: " + json, "x=", ""},
  };
  for (const auto& c : kCases) {
    const auto accepts = [&](const std::string& value) {
      return Accepts(c.kind, c.grammar, c.before + value + c.after);
    };
    const std::string n20(20, '7'), n17(17, '7');
    for (const std::string& fits : {n20, "-" + n20, n20 + "." + n17, "0." + n17, n20 + "e12",
                                    '"' + n30 + '"', "\"\\\"" + n30 + '"'})
      EXPECT_TRUE(accepts(fits)) << c.grammar << " " << fits;
    for (const std::string& ends :
         {n20 + "7", "-" + n20 + "7", "0." + n17 + "7", std::string("7e1000"), n30})
      EXPECT_FALSE(accepts(ends)) << c.grammar << " " << ends;
  }
}

// Other parts are as the client wrote them.
TEST_F(GrammarLimitsTest, RequestedDigitsAreAccepted) {
  const std::string n30(30, '7');
  EXPECT_TRUE(Accepts(Kind::kRegex, "[0-9]{30}", n30));
  EXPECT_TRUE(Accepts(Kind::kLark, "start: /[0-9]{30}/", n30));
  EXPECT_TRUE(Accepts(Kind::kStructuralTag,
                      R"({"format":{"type":"json_schema","json_schema":{"const":1e25}}})",
                      "1" + std::string(25, '0')));
}

// A grammar of `num_rules` rules, each in the one before: name(i) is `before` name(i + 1) `after`.
std::string RulesInRules(const std::string& name, int num_rules, const std::string& before,
                         const std::string& after) {
  std::string text = "start: " + name + "0\n";
  for (int i = 0; i + 2 < num_rules; ++i) {
    text += name + std::to_string(i) + ": " + before + name + std::to_string(i + 1) + after + "\n";
  }
  return text + name + std::to_string(num_rules - 2) + ": \"a\"\n";
}

// The library calls itself for each level, so too many would overflow the stack.
TEST_F(GrammarLimitsTest, RulesInRulesAreCompiledUpToTheLimit) {
  for (const std::string name : {"r", "R"}) {
    const std::unique_ptr<TokenConstraint> deep = Make(Kind::kLark,
                                                       RulesInRules(name, 10000, "", ""));
    ASSERT_NE(deep, nullptr);
    EXPECT_TRUE(Accepts(*deep, "a"));
    EXPECT_THAT(Refusal(Kind::kLark, RulesInRules(name, 10001, "", "")),
                HasSubstr("levels of their groups are 10001; allowed: at most 10000"));
    const std::unique_ptr<TokenConstraint> groups = Make(
        Kind::kLark, RulesInRules(name, 5000, "(\"x\"", " \"y\")?"));
    ASSERT_NE(groups, nullptr);
    EXPECT_TRUE(Accepts(*groups, "xxyy"));
    EXPECT_THAT(Refusal(Kind::kLark, RulesInRules(name, 5002, "(", ")")), HasSubstr("10002"));
  }
  std::string groups, rules = "root ::= r0\n";
  for (int i = 0; i < 20; ++i) groups += "(\"x\" ";
  for (int i = 0; i < 500; ++i)
    rules += "r" + std::to_string(i) + " ::= " + groups + std::string(20, ')') + "\n";
  EXPECT_THAT(Refusal(Kind::kEbnf, rules), HasSubstr("allowed: at most 10000"));
}

TEST_F(GrammarLimitsTest, GroupsInGroupsAreLimited) {
  const std::string many(70, '('), ends(70, ')');
  for (const std::string& text : {
           "start: " + many + "\"a\"" + ends,
           "start: A\nA: /x\n\"/ " + many + "\"a\"" + ends + "\"\"",  // an expression of two lines
           "start: A\nA: <\"> " + many + "\"a\"" + ends,              // a special token
           "start: a{" + std::string(70, '{') + "\"a\"" + std::string(71, '}'),
       })
    EXPECT_THAT(Refusal(Kind::kLark, text), HasSubstr("nested more than 64 deep")) << text;
  EXPECT_TRUE(
      Accepts(Kind::kLark, "start: A \"" + many + "\" // " + many + "\nA: /[(]{70}/", many + many));
}

TEST_F(GrammarLimitsTest, HostileGrammarsAreRefusedOrBoundedInTime) {
  std::string deep, wide = R"({"anyOf":[)", chain = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 70; ++i) deep += R"({"items":)";
  deep += "{}" + std::string(70, '}');
  for (int i = 0; i < 900; ++i) {
    wide += (i > 0 ? "," : "") + std::string(R"({"properties":{"p)") + std::to_string(i) +
            R"(":{"type":"integer"}},"required":["p)" + std::to_string(i) + R"("]})";
  }
  wide += R"(],"type":"object"})";
  for (int i = 0; i < 490; ++i) {
    chain += R"("a)" + std::to_string(i) + R"(":{"allOf":[{"$ref":"#/$defs/a)" +
             std::to_string(i + 1) + R"("}]},)";
  }
  chain += R"("a490":{"type":"integer"}}})";
  std::string product = R"({"allOf":[)";
  for (int i = 0; i < 12; ++i) {
    product += (i > 0 ? "," : "") + std::string(R"({"anyOf":[)");
    for (int k = 0; k < 8; ++k) {
      product += (k > 0 ? "," : "") + std::string(R"({"minLength":)") + std::to_string(k) + "}";
    }
    product += "]}";
  }
  product += "]}";
  const std::vector<std::pair<Kind, std::string>> hostile = {
      {Kind::kJsonSchema, deep},
      {Kind::kJsonSchema, wide},
      {Kind::kJsonSchema, chain},
      {Kind::kJsonSchema, product},
      {Kind::kJsonSchema, R"({"type":"array","maxItems":1000000000})"},
      {Kind::kJsonSchema, R"({"type":"string","minLength":65536})"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"^(.*a.{30}){40}$"})"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"^((a{1000}){1000}){1000}$"})"},
      {Kind::kJsonSchema, R"({"$ref":"#"})"},
      {Kind::kRegex, "(.*a.{40}){40}"},
      {Kind::kRegex, "((((a{1,100}){1,100}){1,100}){1,100})"},
      {Kind::kLark, "start: a a a a\na: b | b a | a b\nb: \"x\" | \"x\" b | \"xx\""},
      {Kind::kEbnf, "root ::= root root | \"x\" | \"\""}};
  int masks = 0;
  for (const auto& [kind, text] : hostile) {
    const auto begin = std::chrono::steady_clock::now();
    Result<std::unique_ptr<TokenConstraint>> made = Compile(kind, text);
    const std::chrono::duration<double> compiled = std::chrono::steady_clock::now() - begin;
    RecordProperty(text.substr(0, 40), std::to_string(compiled.count()));
    EXPECT_LT(compiled.count(), 20) << text.substr(0, 80);  // a sanitizer slows it down by ten
    if (!made.ok()) {
      EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
      continue;
    }
    std::mt19937_64 random(3);
    for (int i = 0; i < 30; ++i) {  // a mask is made, or the work limit ends it
      std::vector<uint32_t> mask(MaskWords(vocab_size_));
      if (!(*made)->Fill(mask).ok()) break;
      ++masks;
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocab_size_; ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
      }
      ASSERT_FALSE(allowed.empty());
      if (!(*made)->Accept(allowed[random() % allowed.size()]).ok()) break;
    }
  }
  EXPECT_GT(masks, 60);
}

}  // namespace
}  // namespace diffserve
