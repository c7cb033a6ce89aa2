// SPDX-License-Identifier: Apache-2.0
#include "server/json/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

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

TEST(JsonWriterTest, MissingValueIsNull) {
  const char* const no_text = nullptr;
  EXPECT_EQ(JsonObjectOf([&](JsonWriter& json) {
              json.Add("text", no_text).Add("nan", std::nan("")).Add("inf", -HUGE_VALF);
              json.Add("none", std::optional<int>()).Add("some", std::optional<int>(7));
              json.Add("list", std::vector<std::string>{"a", "b"}).Add("ids", std::vector<int>());
            }),
            "{\"text\":null,\"nan\":null,\"inf\":null,\"none\":null,\"some\":7,"
            "\"list\":[\"a\",\"b\"],\"ids\":[]}");
  EXPECT_EQ(JsonObjectOf("status", "ok"), "{\"status\":\"ok\"}");
}

TEST(JsonWriterTest, SpacedHasASpaceAfterCommasAndColons) {
  std::string out;
  JsonWriter(&out, /*spaced=*/true).Begin('{').Add("a", 1).Key("b").Begin('[').Value(2).Value(3);
  EXPECT_EQ(out, "{\"a\": 1, \"b\": [2, 3");
}

TEST(JsonWriterTest, TakesMembersOfAnotherWriter) {
  std::string head;
  JsonWriter(&head).Add("id", "a").Add("created", 5);
  std::string out;
  JsonWriter(&out).Begin('{').Members(head).Members("").Add("last", true).End('}');
  EXPECT_EQ(out, "{\"id\":\"a\",\"created\":5,\"last\":true}");
}

TEST(JsonWriterTest, LazyItemsAreSeparatedByCommas) {
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

TEST(JsonWriterTest, LongTextsKeepTheirOrderAmongLazyItems) {
  const std::string text(100'000, 'x');
  int whole = 0;
  TextPieces pieces;
  JsonWriter json(&pieces);
  json.List(2, [&](size_t i, JsonWriter& item) {
    item.Begin('{').Add("i", i).Key("t").LongText(text).Key("parts");
    item.TextParts(2, [](size_t part, std::string* out) { *out += part == 0 ? "a" : "b"; });
    item.Add("last", true).End('}').Then([&] { ++whole; });
  });
  std::string out;
  while (whole == 0) pieces.Write(out.size() + 1, &out);
  const std::string member = ",\"t\":\"" + text + "\",\"parts\":\"ab\",\"last\":true}";
  EXPECT_EQ(out, "[{\"i\":0" + member);
  EXPECT_EQ(out + Written(pieces), "[{\"i\":0" + member + ",{\"i\":1" + member + "]");
  EXPECT_EQ(whole, 2);
}

TEST(JsonWriterTest, TextWithoutUtf8IsMended) {
  std::string out;
  JsonWriter(&out).Value("a\xff");
  EXPECT_EQ(out, "\"a\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace diffserve
