// SPDX-License-Identifier: Apache-2.0
// Streams that Python's gzip and zlib made, whole, damaged and joined.
#include "server/http/content_coding.h"

#include <gtest/gtest.h>

#include <string>
#include <variant>

namespace diffserve {
namespace {

constexpr char kText[] = R"({"prompt":"hello"})";
constexpr size_t kMaxBytes = 1 << 10;

std::string Bytes(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

const std::string kRaw = Bytes("ab562a28cacf2d2851b252ca48cdc9c957aa0500");
const std::string kZlib = Bytes("789c") + kRaw + Bytes("3dfd0671");
const std::string kGzip = Bytes("1f8b0800000000000203") + kRaw + Bytes("a2069b6d12000000");

// The text, or the status of the refusal.
std::string Decoded(ContentCoding coding, std::string_view body, size_t max_bytes = kMaxBytes) {
  const auto decoded = DecodeBody(coding, body, max_bytes);
  const auto* const text = std::get_if<std::string>(&decoded);
  return text != nullptr ? *text : std::to_string(std::get<HttpRefusal>(decoded).status);
}

TEST(ContentCodingTest, ThreeCodingsAreAccepted) {
  EXPECT_EQ(ContentCodingOf("gzip"), ContentCoding::kGzip);
  EXPECT_EQ(ContentCodingOf("X-GZip"), ContentCoding::kGzip);
  EXPECT_EQ(ContentCodingOf("DEFLATE"), ContentCoding::kDeflate);
  EXPECT_EQ(ContentCodingOf("identity"), ContentCoding::kIdentity);
  EXPECT_EQ(ContentCodingOf(""), ContentCoding::kIdentity);
  for (const char* other : {"br", "zstd", "compress", "gzip, gzip", "gzip;q=1", "*", "gzi"})
    EXPECT_EQ(ContentCodingOf(other), std::nullopt) << other;
}

TEST(ContentCodingTest, EachFormThatClientsSendIsDecoded) {
  EXPECT_EQ(Decoded(ContentCoding::kGzip, kGzip), kText);
  EXPECT_EQ(Decoded(ContentCoding::kGzip, kGzip + kGzip), std::string(kText) + kText);
  EXPECT_EQ(Decoded(ContentCoding::kDeflate, kZlib), kText);
  EXPECT_EQ(Decoded(ContentCoding::kDeflate, kRaw), kText);
}

TEST(ContentCodingTest, EveryCutAndEveryDamagedByteIsRefused) {
  const std::pair<ContentCoding, std::string> streams[] = {{ContentCoding::kGzip, kGzip},
                                                           {ContentCoding::kDeflate, kZlib},
                                                           {ContentCoding::kDeflate, kRaw}};
  for (const auto& [coding, stream] : streams) {
    for (size_t i = 0; i < stream.size(); ++i)
      EXPECT_EQ(Decoded(coding, std::string_view(stream).substr(0, i)), "400") << i;
    EXPECT_EQ(Decoded(coding, stream + "x"), "400");
  }
  for (size_t i = 10; i < kGzip.size(); ++i) {
    std::string damaged = kGzip;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
    EXPECT_EQ(Decoded(ContentCoding::kGzip, damaged), "400") << i;
  }
  EXPECT_EQ(Decoded(ContentCoding::kGzip, kZlib), "400");
  EXPECT_EQ(Decoded(ContentCoding::kDeflate, kGzip), "400");
}

TEST(ContentCodingTest, LimitAppliesToTheDecodedBytes) {
  const size_t size = sizeof(kText) - 1;
  EXPECT_EQ(Decoded(ContentCoding::kGzip, kGzip, size), kText);
  EXPECT_EQ(Decoded(ContentCoding::kGzip, kGzip, size - 1), "413");
  std::string bomb;
  while (bomb.size() < 1 << 20) bomb += kGzip;
  EXPECT_EQ(Decoded(ContentCoding::kGzip, bomb), "413");
}

}  // namespace
}  // namespace diffserve
