// SPDX-License-Identifier: Apache-2.0
// JSON schema keywords by ECMA-262 and RFC 8259, where the library reads them differently. Hostile
// schemas: refused by name, or compiled within the limits.
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/testing/text/grammar_fixture.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using GrammarSchemaTest = GrammarFixture;

constexpr char kByteOrderMark[] = "\xEF\xBB\xBF", kNextLine[] = "\xC2\x85",
               kLineSeparator[] = "\xE2\x80\xA8", kNoBreakSpace[] = "\xC2\xA0";

std::string Pattern(const std::string& pattern) {
  std::string quoted;
  for (const char c : pattern) quoted += c == '\\' ? std::string("\\\\") : std::string(1, c);
  return R"({"type":"string","pattern":")" + quoted + "\"}";
}

std::string Quoted(const std::string& text) { return '"' + text + '"'; }

TEST_F(GrammarSchemaTest, SpacesEqualEcmaScripts) {
  for (const char* space : {" ", "\\n", "\\t", kByteOrderMark, kLineSeparator, kNoBreakSpace}) {
    EXPECT_TRUE(Accepts(Kind::kJsonSchema, Pattern("^\\s$"), Quoted(space)));
    EXPECT_FALSE(Accepts(Kind::kJsonSchema, Pattern("^\\S$"), Quoted(space)));
    EXPECT_TRUE(Accepts(Kind::kJsonSchema, Pattern("^[a\\s]$"), Quoted(space)));
    EXPECT_FALSE(Accepts(Kind::kJsonSchema, Pattern("^[^\\s]$"), Quoted(space)));
    EXPECT_TRUE(Accepts(Kind::kJsonSchema, Pattern("^[\\s\\S]$"), Quoted(space)));
  }
  for (const char* other : {"a", kNextLine}) {
    EXPECT_FALSE(Accepts(Kind::kJsonSchema, Pattern("^\\s$"), Quoted(other)));
    EXPECT_TRUE(Accepts(Kind::kJsonSchema, Pattern("^\\S$"), Quoted(other)));
    EXPECT_TRUE(Accepts(Kind::kJsonSchema, Pattern("^[\\S]$"), Quoted(other)));
  }
}

TEST_F(GrammarSchemaTest, DotIsAnyCharacterButTheEndOfALine) {
  for (const char* end : {"\\n", "\\r", kLineSeparator})
    EXPECT_FALSE(Accepts(Kind::kJsonSchema, Pattern("^.$"), Quoted(end)));
  for (const char* other : {".", "a", "\xC3\xA4", kNextLine})
    EXPECT_TRUE(Accepts(Kind::kJsonSchema, Pattern("^.$"), Quoted(other)));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, Pattern("^[.]$"), Quoted(".")));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, Pattern("^[.]$"), Quoted("a")));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, Pattern("^\\.$"), Quoted("a")));
}

TEST_F(GrammarSchemaTest, HostNameHasAtMost253Characters) {
  std::string name = "a";
  while (name.size() < 253) name += ".a";
  const char* schema = R"({"type":"string","format":"hostname"})";
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, schema, Quoted(name)));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, Quoted(name + ".a")));
}

TEST_F(GrammarSchemaTest, NamePatternsAreTranslated) {
  const char* schema =
      R"({"type":"object","patternProperties":{"^\\S$":{"const":1}},"additionalProperties":false})";
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, schema, R"({"a": 1})"));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, R"({"a": 2})"));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, "{\"" + std::string(kByteOrderMark) + "\": 1}"));
  EXPECT_THAT(SchemaRefusal(R"({"patternProperties":{".":{},"[^\\n\\r\\u2028\\u2029]":{}}})"),
              HasSubstr("is the same as one before it"));
}

TEST_F(GrammarSchemaTest, PatternsThatOneNameMayMatchAreRefusedByName) {
  EXPECT_THAT(SchemaRefusal(R"({"patternProperties":{"f.*":{},"b.*":{"type":"null"}}})"),
              HasSubstr("patternProperties is enforced only where"));
}

TEST_F(GrammarSchemaTest, UnsupportedPatternsAreRefusedByName) {
  for (const char* pattern : {"(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b", "a^b", "a$b", "$^",
                              "\\bfoo", "(a)\\1", "[[a]", "a{,3}"}) {
    EXPECT_THAT(SchemaRefusal(Pattern(pattern)), HasSubstr("#: pattern")) << pattern;
  }
  EXPECT_THAT(SchemaRefusal(Pattern("a{2")), HasSubstr("a pattern is not supported"));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, Pattern("^a|b$"), Quoted("ax")));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, Pattern("^(?:a|(?<n>b))$"), Quoted("b")));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, Pattern("^\\p{L}+$"), Quoted("\xC3\xA4")));
}

TEST_F(GrammarSchemaTest, BoundBeyondTheRangeIsOpenOrRefused) {
  const auto bounded = [](const std::string& type, const std::string& rule) {
    return "{\"type\":\"" + type + "\"," + rule + "}";
  };
  for (const char* type : {"integer", "number"}) {
    for (const char* rule : {R"("maximum":1.7976931348623157e308)", R"("maximum":3.4e38)",
                             R"("maximum":18446744073709551615)", R"("minimum":-1e19)",
                             R"("exclusiveMinimum":-18446744073709551615)"}) {
      EXPECT_TRUE(Accepts(Kind::kJsonSchema, bounded(type, rule), "9007199254740993")) << rule;
      EXPECT_TRUE(Accepts(Kind::kJsonSchema, bounded(type, rule), "-9007199254740993")) << rule;
    }
    for (const char* rule : {R"("minimum":1e19)", R"("exclusiveMaximum":-1e19)",
                             R"("minimum":18446744073709551615)"}) {
      EXPECT_THAT(SchemaRefusal(bounded(type, rule)), HasSubstr("no number on its other side"));
    }
  }
  const char* last = R"({"type":"integer","exclusiveMinimum":9007199254740990})";
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, last, "9007199254740991"));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, last, "9007199254740990"));
  for (const char* schema : {R"({"minimum":1e999})", R"({"const":-1e999})", R"({"enum":[1e400]})"})
    EXPECT_THAT(SchemaRefusal(schema), HasSubstr("number out of range")) << schema;
  EXPECT_THAT(SchemaRefusal(R"({"multipleOf":1e-400})"), HasSubstr("#: multipleOf"));
  EXPECT_THAT(SchemaRefusal(R"({"multipleOf":1e300})"), HasSubstr("multipleOf"));
}

// Takes the first allowed token of `preferred`; if none is, the end or a token that leads to it.
std::string Preferred(TokenConstraint& constraint, const std::string& preferred,
                      const Tokenizer& tokenizer, int vocab_size, int32_t eos) {
  std::vector<uint32_t> mask(MaskWords(vocab_size));
  std::string text;
  while (text.size() < 200) {
    if (!constraint.Fill(mask).ok()) return text + " fails";
    const auto may_come = [&](int32_t id) {
      return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
    };
    int32_t drawn = eos;
    for (const char c : preferred + (may_come(eos) ? "" : "0123456789-.")) {
      const int32_t id = tokenizer.Encode(std::string(1, c), false).value().at(0);
      if (!may_come(id)) continue;
      drawn = id;
      break;
    }
    if (drawn == eos && !may_come(eos)) return text + " has no end";
    if (drawn == eos) return text;
    EXPECT_TRUE(constraint.Accept(drawn).ok());
    text += tokenizer.TokenBytes(drawn);
  }
  return text + " runs away";
}

TEST_F(GrammarSchemaTest, SampledNumbersEndWithinTheirBounds) {
  struct Bounded {
    const char* schema;
    double above, below;  // as a 64-bit reader reads them
  };
  constexpr double kNone = std::numeric_limits<double>::infinity();
  for (const Bounded& bounded : {
           Bounded{R"({"type":"number"})", -kNone, kNone},
           Bounded{R"({"type":"integer"})", -kNone, kNone},
           Bounded{R"({"type":"number","exclusiveMaximum":1})", -kNone, 1},
           Bounded{R"({"type":"number","exclusiveMinimum":0})", 0, kNone},
           Bounded{R"({"type":"number","exclusiveMinimum":-0.1,"exclusiveMaximum":0.1})", -0.1,
                   0.1},
           Bounded{R"({"type":"number","exclusiveMinimum":0.01,"exclusiveMaximum":0.02})", 0.01,
                   0.02},
           Bounded{R"({"type":"number","exclusiveMaximum":9007199254740994})", -kNone,
                   9007199254740994},
           Bounded{R"({"type":"integer","exclusiveMaximum":9007199254740996})", -kNone,
                   9007199254740996},
           Bounded{R"({"type":"integer","multipleOf":7})", -kNone, kNone},
           Bounded{R"({"type":"number","multipleOf":0.01})", -kNone, kNone},
       }) {
    const std::unique_ptr<TokenConstraint> compiled = Make(Kind::kJsonSchema, bounded.schema);
    ASSERT_NE(compiled, nullptr);
    for (const char* preferred :
         {"9.0e-", "09.e", "0.9e", "-09.", "-0.9", "-9.9", "1e9", "-.0123456789", "0.019", "18.",
          "-0.09", "9007199254740995.", "e9.1"}) {
      const std::string text = Preferred(*compiled->Clone(), preferred, *tokenizer_, vocab_size_,
                                         eos_);
      const auto value = nlohmann::json::parse(text, nullptr, false);
      ASSERT_TRUE(value.is_number()) << bounded.schema << " " << preferred << " " << text;
      EXPECT_GT(value.get<double>(), bounded.above) << bounded.schema << " " << text;
      EXPECT_LT(value.get<double>(), bounded.below) << bounded.schema << " " << text;
    }
  }
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, R"({"type":"number"})", "3.141592653589793"));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, R"({"type":"integer"})", "18446744073709551615"));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, R"({"type":"number"})", "1.5e-300"));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, R"({"const":1e25})", "10000000000000000000000000"));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, R"({"type":"string"})", Quoted(std::string(40, '9'))));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, R"({"type":"number"})", "1e309"));
}

std::string Repeated(int count, const std::function<std::string(int)>& entry) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? "," : "") + entry(i);
  return text;
}

// Name of the case, the schema, and words of the refusal; empty: it may also compile.
struct Hostile {
  const char* name;
  std::string schema;
  const char* refusal = "";
};

std::vector<Hostile> LargeSchemas() {
  const auto number = [](int i) { return std::to_string(i); };
  std::string nested_any;
  for (int i = 0; i < 60; ++i) nested_any += R"({"anyOf":[{"type":"null"},)";
  nested_any += "{}";
  for (int i = 0; i < 60; ++i) nested_any += "]}";
  const std::string deep_array = std::string(200'000, '[');
  return {
      {"a list of 10,000 constants",
       R"({"enum":[)" + Repeated(10'000, [&](int i) { return "\"w" + number(i) + "\""; }) + "]}",
       "enum has 10000 entries"},
      {"1,000 constants",
       R"({"enum":[)" + Repeated(1000, [&](int i) { return "\"w" + number(i) + "\""; }) + "]}"},
      {"each schema refers to the two before it",
       R"({"$ref":"#/$defs/a40","$defs":{"a0":{"type":"null"},"a1":{"type":"null"},)" +
           Repeated(39,
                    [&](int i) {
                      const std::string one = number(i), two = number(i + 1);
                      return "\"a" + number(i + 2) + R"(":{"anyOf":[{"$ref":"#/$defs/a)" + one +
                             R"("},{"items":{"$ref":"#/$defs/a)" + two + R"("}}]})";
                    }) +
           "}}"},
      {"two schemas that are each other",
       R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})",
       "refers back"},
      {"a schema that is one of its own alternatives",
       R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "refers back"},
      {"a reference with neighbours that refers back into itself",
       R"({"properties":{"a":{"$ref":"#","required":["b"]}},"type":"object"})"},
      {"alternatives within alternatives", nested_any},
      {"an unclosed list", deep_array, "not JSON"},
      {"a list nested 200,000 deep", "{\"const\":" + deep_array + std::string(200'000, ']') + "}",
       "bytes; allowed: at most"},
      {"a constant nested 120 deep",
       "{\"const\":" + std::string(120, '[') + std::string(120, ']') + "}", "levels"},
      {"200 optional members of 40 words",
       R"({"type":"object","properties":{)" +
           Repeated(200,
                    [&](int i) {
                      return "\"p" + number(i) + R"(":{"enum":[)" +
                             Repeated(40, [&](int k) { return "\"v" + number(k) + "\""; }) + "]}";
                    }) +
           "}}"},
      {"lists of lists of 4,096 items",
       R"({"type":"array","maxItems":4096,"items":{"type":"array","maxItems":4096,"items":)"
       R"({"type":"array","minItems":4096}}})"},
      {"65,536 characters at least",
       R"({"type":"array","minItems":100,"items":{"type":"string","minLength":65536}})"},
      {"a multiple with 17 digits", R"({"type":"number","multipleOf":0.12345678901234567})",
       "multipleOf"},
      {"a multiple of four digits", R"({"type":"integer","multipleOf":7919})"},
      {"a multiple that is a power of ten", R"({"type":"integer","multipleOf":1000000})"},
      {"a multiple of six digits", R"({"type":"integer","multipleOf":104729})", "#: multipleOf"},
      {"a multiple that is a fraction of many digits", R"({"type":"number","multipleOf":0.104729})",
       "#: multipleOf"},
      {"two multiples whose common one is large",
       R"({"type":"integer","allOf":[{"multipleOf":997},{"multipleOf":991}]})", "#: multipleOf"},
      {"multiples of one member, by a name and a pattern of names",
       R"({"properties":{"a":{"multipleOf":997}},"patternProperties":{"^a":{"multipleOf":991}}})",
       "#: multipleOf"}};
}

// Many expressions at once.
std::vector<Hostile> ManyPatterns() {
  const auto number = [](int i) { return std::to_string(i); };
  return {
      {"counts within counts", Pattern("^(((a{1,90}){1,90}){1,90}){1,90}$")},
      {"a count of 100,000", Pattern("^a{100000}$")},
      {"40 patterns that must hold together",
       R"({"type":"string","allOf":[)" +
           Repeated(40, [&](int i) { return R"({"pattern":"a.{)" + number(i + 20) + R"(}b"})"; }) +
           "]}",
       "pattern and format"},
      {"40 patterns of one member",
       R"({"type":"object","allOf":[)" +
           Repeated(40,
                    [&](int i) {
                      return R"({"properties":{"a":{"items":{"pattern":"a.{)" + number(i + 20) +
                             R"(}b"}}}})";
                    }) +
           "]}",
       "pattern and format"},
      {"16 patterns through references",
       R"({"$ref":"#/$defs/a15","$defs":{"a0":{"pattern":"a.{20}b"},)" +
           Repeated(15,
                    [&](int i) {
                      return "\"a" + number(i + 1) + R"(":{"$ref":"#/$defs/a)" + number(i) +
                             R"(","pattern":"a.{)" + number(i + 21) + R"(}b"})";
                    }) +
           "}}",
       "pattern and format"},
      {"10 patterns of one string",
       R"({"type":"string","allOf":[)" +
           Repeated(10, [&](int i) { return R"({"pattern":"a.{)" + number(i + 20) + R"(}b"})"; }) +
           "]}"},
      {"20 patterns of 20 members", R"({"type":"object","properties":{)" +
                                        Repeated(20,
                                                 [&](int i) {
                                                   return "\"p" + number(i) +
                                                          R"(":{"pattern":"a.{)" + number(i + 20) +
                                                          R"(}b"})";
                                                 }) +
                                        "}}"},
      {"300 patterns of names",
       R"({"type":"object","patternProperties":{)" +
           Repeated(300, [&](int i) { return "\"^p" + number(i) + R"([a-z]*$":{})"; }) + "}}",
       "patternProperties and the like"},
      {"one of 1,000 constants", R"({"oneOf":[)" + Repeated(1000, [&](int i) {
                                   return R"({"const":"c)" + number(i) + "\"}";
                                 }) + "]}"}};
}

std::vector<Hostile> WrongSchemas() {
  return {
      {"types that contradict each other",
       R"({"allOf":[{"type":"string"},{"type":"object","required":["a"]}]})", "Unsatisfiable"},
      {"constants that contradict each other", R"({"allOf":[{"const":"a"},{"const":"b"}]})", ""},
      {"bounds that contradict each other in two places",
       R"({"allOf":[{"type":"integer","minimum":5},{"maximum":4}]})", "nsatisfiable"},
      {"lengths that contradict each other in two places",
       R"({"type":"string","minLength":9,"allOf":[{"maxLength":4}]})", "nsatisfiable"},
      {"a pattern that no string of the length matches",
       R"({"type":"string","pattern":"^a{9}$","maxLength":4})", "nsatisfiable"},
      {"a required member that is false",
       R"({"type":"object","properties":{"a":false},"required":["a"]})", "nsatisfiable"},
      {"a number where a schema stands", R"({"properties":{"a":5}})", "an object or a boolean"},
      {"a list where a number stands", R"({"maxLength":[]})", "maxLength"},
      {"a negative count", R"({"maxItems":-1})", "maxItems"},
      {"a count that is no whole number", R"({"minLength":1.5})", "minLength"},
      {"null", "null", "an object or a boolean"}};
}

TEST_F(GrammarSchemaTest, ManyIntersectionsInALarkGrammarAreRefused) {
  std::string few = "start: T\nT: /a.*/", many;
  for (int i = 0; i < 8; ++i) few += " & /(?s:.*)b{" + std::to_string(i) + "}&(?s:.*)/";
  many = few + " & /c*/ // &\n";
  EXPECT_THAT(Refusal(Kind::kLark, many), HasSubstr("more than 8 intersections"));
  EXPECT_THAT(Refusal(Kind::kLark, few), ::testing::Not(HasSubstr("intersections")));
}

// Draws up to 20 tokens. Each step has a token that is allowed, or meets a limit. Returns the
// number of tokens drawn.
int DrawSome(TokenConstraint& constraint, int vocab_size) {
  std::mt19937_64 random(5);
  std::vector<uint32_t> mask(MaskWords(vocab_size));
  for (int i = 0; i < 20; ++i) {
    if (const Status status = constraint.Fill(mask); !status.ok()) {
      EXPECT_THAT(status.message(), HasSubstr("too many expressions"));
      return i;
    }
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocab_size; ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    EXPECT_FALSE(allowed.empty());
    if (allowed.empty()) return i;
    EXPECT_TRUE(constraint.Accept(allowed[random() % allowed.size()]).ok());
  }
  return 20;
}

TEST_F(GrammarSchemaTest, HostileSchemasAreRefusedOrCompiledWithinTheirLimits) {
  std::vector<Hostile> schemas = LargeSchemas();
  for (const auto& more : {ManyPatterns(), WrongSchemas()})
    schemas.insert(schemas.end(), more.begin(), more.end());
  int compiled = 0, drawn_to_the_end = 0;
  for (const Hostile& hostile : schemas) {
    const GrammarCompiler::Stats before = compiler_->stats();
    const auto begin = std::chrono::steady_clock::now();
    Result<std::unique_ptr<TokenConstraint>> made = Compile(Kind::kJsonSchema, hostile.schema);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    RecordProperty(hostile.name, std::to_string(took.count()));
    EXPECT_LT(took.count(), 20) << hostile.name;  // a sanitizer slows it down by ten
    if (made.ok()) {
      EXPECT_STREQ(hostile.refusal, "") << hostile.name;
      const size_t kept = compiler_->stats().cache_bytes;
      if (kept > before.cache_bytes) {  // else others were dropped
        EXPECT_LE(kept - before.cache_bytes, GrammarLimits().max_compiled_bytes + (1 << 20));
      }
      ++compiled;
      drawn_to_the_end += DrawSome(**made, vocab_size_) == 20 ? 1 : 0;
      continue;
    }
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument) << hostile.name;
    EXPECT_THAT(made.status().message(), HasSubstr(hostile.refusal)) << hostile.name;
    EXPECT_EQ(made.status().message().find('\n'), std::string::npos) << hostile.name;
  }
  EXPECT_GT(compiled, 5);
  EXPECT_GT(drawn_to_the_end, 5);
}

}  // namespace
}  // namespace diffserve
