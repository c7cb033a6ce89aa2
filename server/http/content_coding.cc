// SPDX-License-Identifier: Apache-2.0
#include "server/http/content_coding.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/process/check.h"

namespace diffserve {
namespace {

constexpr size_t kPieceBytes = 64 << 10;
constexpr int kWindowBits = 15;  // the largest that a stream may have
constexpr int kGzip = 16;        // added to it, as zlib wants to have it said

// Recognises zlib's two header bytes: they name the method and are a multiple of 31. Raw deflate
// begins with other bytes.
bool IsWrapped(std::string_view body) {
  if (body.size() < 2) return true;
  const auto first = static_cast<unsigned char>(body[0]);
  const auto second = static_cast<unsigned char>(body[1]);
  return (first & 15) == Z_DEFLATED && (first * 256 + second) % 31 == 0;
}

class Inflater {
 public:
  Inflater(int window_bits, std::string_view in) {
    // zlib's interface takes a non-const pointer for its input but only reads it.
    stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    DS_CHECK(inflateInit2(&stream_, window_bits) == Z_OK,
             "zlib has memory and takes these window bits");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  bool at_end() const { return stream_.avail_in == 0; }
  void Restart() { inflateReset(&stream_); }

  // Decodes the next piece and appends it; returns zlib's code.
  int Next(std::string* out) {
    stream_.next_out = piece_.data();
    stream_.avail_out = static_cast<uInt>(piece_.size());
    const int code = inflate(&stream_, Z_NO_FLUSH);
    DS_CHECK(code != Z_MEM_ERROR, "zlib has memory");
    out->append(reinterpret_cast<const char*>(piece_.data()), piece_.size() - stream_.avail_out);
    return code;
  }

 private:
  z_stream stream_{};
  std::array<Bytef, kPieceBytes> piece_;
};

}  // namespace

std::optional<ContentCoding> ContentCodingOf(std::string_view field) {
  constexpr std::pair<std::string_view, ContentCoding> kCodings[] = {
      {"", ContentCoding::kIdentity},
      {"identity", ContentCoding::kIdentity},
      {"gzip", ContentCoding::kGzip},
      {"x-gzip", ContentCoding::kGzip},
      {"deflate", ContentCoding::kDeflate}};
  std::string lower(field);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  for (const auto& [name, coding] : kCodings) {
    if (lower == name) return coding;
  }
  return std::nullopt;
}

std::variant<std::string, HttpRefusal> DecodeBody(ContentCoding coding, std::string_view body,
                                                  size_t max_bytes) {
  const bool gzip = coding == ContentCoding::kGzip;
  Inflater inflater(gzip              ? kWindowBits + kGzip
                    : IsWrapped(body) ? kWindowBits
                                      : -kWindowBits,
                    body);
  std::string decoded;
  while (true) {
    const int code = inflater.Next(&decoded);
    if (decoded.size() > max_bytes) {
      return BodyTooLarge(
          "the decompressed body has at least " + std::to_string(decoded.size()) + " bytes",
          max_bytes);
    }
    if (code == Z_STREAM_END) {
      if (inflater.at_end()) return decoded;
      if (!gzip) return HttpRefusal{400, "the body has data after its compressed stream"};
      inflater.Restart();
    } else if (code == Z_BUF_ERROR) {
      return HttpRefusal{400, "the body's compressed stream is truncated"};
    } else if (code != Z_OK) {
      return HttpRefusal{400, "the body does not match its Content-Encoding"};
    }
  }
}

}  // namespace diffserve
