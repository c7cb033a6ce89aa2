// SPDX-License-Identifier: Apache-2.0
// The JSON of attention maps, made in pieces.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/base/dtype.h"
#include "server/api/attention/reply.h"

namespace diffserve {
namespace {

using Json = nlohmann::json;

std::shared_ptr<AttentionAnswer> MakeAnswer(int num_maps, int slots) {
  auto answer = std::make_shared<AttentionAnswer>();
  answer->num_maps = num_maps;
  answer->num_layers = 3;
  answer->num_heads = 2;
  answer->tokens = {5, 6};
  answer->token_texts = {"a\"", "\xc3\xa9"};
  for (int head : {0, 1}) {
    AttentionQueryMaps& item = answer->items.emplace_back();
    item.layer = 1;
    item.head = head;
    item.position = slots - 1;
    item.lambda = 0.5;
    item.entropy1 = 1;
    for (int slot = 0; slot < slots; ++slot) {
      item.map1.push_back(1.0f / static_cast<float>(slot + 2));
      if (num_maps == 2) item.map2.push_back(static_cast<float>(head));
    }
  }
  return answer;
}

std::string Text(const SharedAttentionAnswer& answer, bool float16, size_t enough) {
  AttentionText text(answer, {"attn-1", "tiny", 77, float16});
  std::string all;
  for (bool whole = false; !whole;) {
    std::string piece;
    whole = text.Write(enough, &piece);
    EXPECT_LT(piece.size(), enough + 10'000);
    all += piece;
  }
  return all;
}

std::vector<uint8_t> FromBase64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 3 < text.size(); i += 4) {
    uint32_t group = 0;
    int padding = 0;
    for (size_t k = 0; k < 4; ++k) {
      padding += text[i + k] == '=';
      group = group << 6 |
              (text[i + k] == '=' ? 0 : static_cast<uint32_t>(digits.find(text[i + k])));
    }
    for (int k = 0; k < 3 - padding; ++k)
      bytes.push_back(static_cast<uint8_t>(group >> (16 - 8 * k)));
  }
  return bytes;
}

TEST(AttentionReplyTest, ReplyHasAllMembersForEveryPieceSize) {
  const auto answer = MakeAnswer(2, 3);
  answer->has_span = true;
  answer->items[0].on_span = {0.25, 0.5, 0.75};
  const std::string whole = Text(answer, false, 1 << 20);
  EXPECT_EQ(Text(answer, false, 1), whole);
  const Json json = Json::parse(whole);
  EXPECT_EQ(json["object"], "attention");
  EXPECT_EQ(json["id"], "attn-1");
  EXPECT_EQ(json["created"], 77);
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_EQ(json["maps"], 2);
  EXPECT_EQ(json["num_layers"], 3);
  EXPECT_EQ(json["num_heads"], 2);
  EXPECT_EQ(json["tokens"], Json({5, 6}));
  EXPECT_EQ(json["token_texts"], Json({"a\"", "\xc3\xa9"}));
  ASSERT_EQ(json["data"].size(), 2u);
  const Json& item = json["data"][0];
  EXPECT_EQ(item["layer"], 1);
  EXPECT_EQ(item["head"], 0);
  EXPECT_EQ(item["position"], 2);
  EXPECT_EQ(item["lambda"], 0.5);
  EXPECT_EQ(item["entropy1"], 1.0);
  EXPECT_EQ(item["entropy2"], 0.0);
  EXPECT_EQ(item["cancelled"], 0.0);
  EXPECT_EQ(item["on_span"], Json({{"map1", 0.25}, {"map2", 0.5}, {"difference", 0.75}}));
  EXPECT_EQ(item["map1"].get<std::vector<float>>(), answer->items[0].map1);
  EXPECT_EQ(item["map2"].get<std::vector<float>>(), answer->items[0].map2);
  EXPECT_FALSE(item.contains("top"));
}

TEST(AttentionReplyTest, MembersThatOneMapLacksAreNull) {
  const auto answer = MakeAnswer(1, 2);
  answer->has_span = true;
  const Json item = Json::parse(Text(answer, false, 100))["data"][1];
  for (const char* name : {"entropy2", "map2"}) EXPECT_TRUE(item[name].is_null()) << name;
  EXPECT_TRUE(item["on_span"]["map2"].is_null());
  answer->top_k = 1;
  answer->items[1].top = {{4, 0.5f, 0, 0.5f}};
  const Json top = Json::parse(Text(answer, false, 100))["data"][1]["top"];
  EXPECT_EQ(top, Json::parse(R"([{"slot":4,"map1":0.5,"map2":null,"difference":0.5}])"));
}

TEST(AttentionReplyTest, TopKOmitsFullMaps) {
  const auto answer = MakeAnswer(2, 2);
  answer->top_k = 2;
  answer->items[0].top = {{1, 0.5f, 0.25f, 0.375f}, {0, 0.25f, 0.5f, 0}};
  const Json item = Json::parse(Text(answer, true, 100))["data"][0];
  EXPECT_FALSE(item.contains("map1"));
  ASSERT_EQ(item["top"].size(), 2u);
  EXPECT_EQ(item["top"][0],
            Json({{"slot", 1}, {"map1", 0.5}, {"map2", 0.25}, {"difference", 0.375}}));
}

TEST(AttentionReplyTest, Float16OfAnyLengthIsLittleEndianInBase64) {
  for (int slots : {1, 2, 3, 1535, 1536, 1537, 5000}) {
    const auto answer = MakeAnswer(2, slots);
    const Json item = Json::parse(Text(answer, true, 4096))["data"][0];
    const std::vector<uint8_t> bytes = FromBase64(item["map1"]);
    ASSERT_EQ(bytes.size(), 2 * static_cast<size_t>(slots));
    for (size_t i = 0; i < answer->items[0].map1.size(); ++i) {
      const auto bits = static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
      ASSERT_EQ(bits, FloatToFloat16(answer->items[0].map1[i])) << slots << " slots, " << i;
    }
  }
}

}  // namespace
}  // namespace diffserve
