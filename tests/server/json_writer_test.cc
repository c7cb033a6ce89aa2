// SPDX-License-Identifier: Apache-2.0
#include "server/api/json/json_writer.h"

#include <gtest/gtest.h>

#include <string>

namespace diffserve {
namespace {

std::string Written(TextPieces& pieces) {
  std::string out;
  while (!pieces.empty()) pieces.Write(out.size() + 1, &out);
  return out;
}

TEST(JsonWriterTest, WritesEveryKindOfValue) {
  std::string out;
  JsonWriter json(&out);
  json.Begin('{').Add("text", "a\"b\n").Add("bool", true).Add("int", int64_t{-7});
  json.Add("count", size_t{3}).Add("double", 2.0).Add("float", 0.1f).Add("none", nullptr);
  json.Key("list").Begin('[').Value(1).Begin('{').End('}').Begin('[').End(']').Value("x").End(']');
  json.Key("raw").Json("{\"k\":1}").End('}');
  EXPECT_EQ(out,
            "{\"text\":\"a\\\"b\\n\",\"bool\":true,\"int\":-7,\"count\":3,\"double\":2.0,"
            "\"float\":0.1,\"none\":null,\"list\":[1,{},[],\"x\"],\"raw\":{\"k\":1}}");
}

TEST(JsonWriterTest, TakesMembersOfAnotherWriter) {
  std::string head;
  JsonWriter(&head).Add("id", "a").Add("created", 5);
  std::string out;
  JsonWriter(&out).Begin('{').Members(head).Members("").Add("last", true).End('}');
  EXPECT_EQ(out, "{\"id\":\"a\",\"created\":5,\"last\":true}");
}

TEST(JsonWriterTest, ItemsAreSeparatedWhenTheirTurnComes) {
  const std::string text = "long";
  TextPieces pieces;
  JsonWriter json(&pieces);
  json.Begin('{').Key("none").List(0, nullptr).Key("ids");
  json.List(3, [](size_t i, JsonWriter& item) { item.Value(i); });
  json.Key("mixed").Begin('[').Value("first");
  json.Items(2, [&text](size_t, JsonWriter& item) {
    item.Begin('{').Key("t").LongText(text);
    item.Items(1, [](size_t, JsonWriter& member) { member.Add("last", 1); });
    item.End('}');
  });
  json.Value("end").End(']').End('}');
  EXPECT_EQ(Written(pieces),
            "{\"none\":[],\"ids\":[0,1,2],\"mixed\":[\"first\",{\"t\":\"long\",\"last\":1},"
            "{\"t\":\"long\",\"last\":1},\"end\"]}");
}

TEST(JsonWriterTest, TextWithoutUtf8IsMended) {
  std::string out;
  JsonWriter(&out).Value("a\xff");
  EXPECT_EQ(out, "\"a\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace diffserve
