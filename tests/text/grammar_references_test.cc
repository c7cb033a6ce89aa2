// SPDX-License-Identifier: Apache-2.0
// References of schemas by pointer, anchor and name, and names of members with control characters.
#include <string>
#include <vector>

#include "tests/testing/text/grammar_fixture.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using GrammarReferencesTest = GrammarFixture;

TEST_F(GrammarReferencesTest, ReferenceLeadsToThePartThatItNames) {
  const auto with = [](const std::string& before, const std::string& reference,
                       const std::string& parts) {
    return "{" + before + R"("type":"object","properties":{"a":{)" + reference +
           R"(}},"required":["a"],"additionalProperties":false,)" + parts + "}";
  };
  const std::string id = R"("$id":"http://a.b/c/root.json",)";
  const std::string draft = R"("$schema":"http://json-schema.org/draft-0)";
  for (const std::string& schema : {
           with("", R"("$ref":"#x")", R"("$defs":{"p":{"$anchor":"x","const":3}})"),
           with(id, R"("$ref":"#x")", R"("$defs":{"p":{"$anchor":"x","const":3}})"),
           with(id, R"("$ref":"root.json#x")", R"("$defs":{"p":{"$anchor":"x","const":3}})"),
           with("", R"("$dynamicRef":"#x")", R"("$defs":{"p":{"$dynamicAnchor":"x","const":3}})"),
           with(id, R"("$ref":"http://a.b/c/root.json#/$defs/p")", R"("$defs":{"p":{"const":3}})"),
           with(id, R"("$ref":"root.json#/$defs/p")", R"("$defs":{"p":{"const":3}})"),
           with(id, R"("$ref":"/c/root.json#/$defs/p")", R"("$defs":{"p":{"const":3}})"),
           with(id, R"("$ref":"./d/../root.json#/$defs/p")", R"("$defs":{"p":{"const":3}})"),
           with(R"("$id":"root",)", R"("$ref":"root#/$defs/p")", R"("$defs":{"p":{"const":3}})"),
           with(id, R"("$ref":"p.json")", R"("$defs":{"p":{"$id":"p.json","const":3}})"),
           with(id, R"("$ref":"/p.json")",
                R"("$defs":{"p":{"$id":"http://a.b/p.json","const":3}})"),
           with(id, R"("$ref":"d/p.json")",
                R"("$defs":{"p":{"$id":"d/","$defs":{"q":{"$id":"p.json","const":3}}}})"),
           with(id, R"("$ref":"p")",
                R"("$defs":{"q":{"const":4},"p":{"$id":"p","$ref":"#/$defs/q",)"
                R"("$defs":{"q":{"const":3}}}})"),
           with("", R"("$ref":"urn:uuid:7#/$defs/q")",
                R"("$defs":{"p":{"$id":"urn:uuid:7","$defs":{"q":{"const":3}}}})"),
           with(draft + R"(7/schema#",)", R"("$ref":"#x")",
                R"("definitions":{"p":{"$id":"#x","enum":[3]}})"),
           with(draft + R"(4/schema#",)", R"("$ref":"p")",
                R"("definitions":{"p":{"id":"p","enum":[3]}})"),
           with("", R"("$ref":"#/$defs/a%25b~1c")", R"("$defs":{"a%b/c":{"const":3}})"),
       }) {
    EXPECT_TRUE(Accepts(Kind::kJsonSchema, schema, R"({"a": 3})")) << schema;
    EXPECT_FALSE(Accepts(Kind::kJsonSchema, schema, R"({"a": 4})")) << schema;
  }
}

TEST_F(GrammarReferencesTest, SchemaMayReferToItselfByItsName) {
  const char* list = R"({"$id":"http://a.b/list","type":"object","properties":)"
                     R"({"next":{"$ref":"list"}},"additionalProperties":false})";
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, list, R"({"next": {"next": {}}})"));
  EXPECT_FALSE(Accepts(Kind::kJsonSchema, list, R"({"next": 1})"));
}

TEST_F(GrammarReferencesTest, ReferenceOutOfTheSchemaIsRefusedByItsName) {
  EXPECT_THAT(SchemaRefusal(R"({"items":{"$ref":"other.json#/x"}})"),
              HasSubstr("#/items: $ref leads to other.json#/x, which is not in the schema"));
  EXPECT_THAT(SchemaRefusal(R"({"$id":"http://a.b/c","items":{"$ref":"d"}})"),
              HasSubstr("#/items: $ref leads to d, which is not in the schema"));
  EXPECT_THAT(SchemaRefusal(R"({"items":{"$ref":"#x"}})"), HasSubstr("$ref leads to #x"));
}

TEST_F(GrammarReferencesTest, ReferenceThatNothingLeadsToIsIgnored) {
  EXPECT_TRUE(
      Accepts(Kind::kJsonSchema, R"({"const":1,"$defs":{"a":{"$ref":"other.json"}}})", "1"));
}

// Names of members and constants are data.
TEST_F(GrammarReferencesTest, DataIsNotReadAsReferences) {
  EXPECT_TRUE(Accepts(Kind::kJsonSchema, R"({"const":{"$ref":"#x","$id":"y"}})",
                      R"({"$ref":"#x","$id":"y"})"));
  EXPECT_TRUE(Accepts(Kind::kJsonSchema,
                      R"({"type":"object","properties":{"$ref":{"const":1},"$id":{"const":2}},)"
                      R"("required":["$ref","$id"],"additionalProperties":false})",
                      R"({"$ref": 1, "$id": 2})"));
}

TEST_F(GrammarReferencesTest, NamesOfMembersMayHaveControlCharacters) {
  const std::string names = R"("a\u0000b":{"const":1},"c\u007fd":{"const":2},"\u001f":{"const":3})";
  const std::string object = R"({"type":"object","properties":{)" + names +
                             R"(},"required":["a\u0000b","c\u007fd","\u001f"],)";
  for (const char* rest : {R"("additionalProperties":false})", R"("title":"t"})"}) {
    EXPECT_TRUE(Accepts(Kind::kJsonSchema, object + rest,
                        "{\"a\\u0000b\": 1, \"c\x7f"
                        "d\": 2, \"\\u001f\": 3}"));
    EXPECT_FALSE(Accepts(Kind::kJsonSchema, object + rest, R"({"ab": 1})"));
  }
}

}  // namespace
}  // namespace diffserve
