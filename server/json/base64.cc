// SPDX-License-Identifier: Apache-2.0
#include "server/json/base64.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace diffserve {
namespace {

constexpr size_t kPieceNumbers = 3 << 9;  // a whole number of base64 groups

}  // namespace

void AppendBase64(std::string_view bytes, std::string* out) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) *out += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
}

void WriteBase64(size_t count, std::function<void(size_t i, std::string* bytes)> append,
                 JsonWriter* json) {
  json->TextParts((count + kPieceNumbers - 1) / kPieceNumbers,
                  [count, append = std::move(append)](size_t piece, std::string* out) {
                    std::string bytes;
                    const size_t end = std::min(count, (piece + 1) * kPieceNumbers);
                    for (size_t i = piece * kPieceNumbers; i < end; ++i) append(i, &bytes);
                    AppendBase64(bytes, out);
                  });
}

}  // namespace diffserve
