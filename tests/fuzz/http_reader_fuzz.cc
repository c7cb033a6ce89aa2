// SPDX-License-Identifier: Apache-2.0
// The bytes of a connection: what is read as a request keeps the limits, how the bytes were cut
// never matters, and a second parser reads the same head. The first byte seeds the cuts, the rest
// is what the client sends.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/http/reader.h"
#include "tests/testing/server/second_reading.h"

namespace {

// Small, so that short inputs reach them.
constexpr diffserve::HttpLimits kLimits = {.max_head_bytes = 1024,
                                           .max_target_bytes = 256,
                                           .max_fields = 8,
                                           .max_body_bytes = 512,
                                           .max_chunks = 16,
                                           .max_trailer_bytes = 128};

void Require(bool condition) {
  if (!condition) std::abort();
}

bool HasControl(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return (c < 32 && c != '\t') || c == 127; });
}

void CheckPromises(const diffserve::HttpRequest& request) {
  const diffserve::HttpHead& head = request.head;
  Require(!head.method.empty() && !HasControl(head.method) && !HasControl(head.query));
  Require(!head.path.empty() && !HasControl(head.path) &&
          head.path.size() + head.query.size() <= kLimits.max_target_bytes);
  Require(head.fields.size() <= kLimits.max_fields);
  for (const auto& [name, value] : head.fields) {
    Require(!name.empty() &&
            std::none_of(name.begin(), name.end(), [](char c) { return c >= 'A' && c <= 'Z'; }));
    Require(!HasControl(name) && !HasControl(value));
    Require(value.empty() || (value.front() != ' ' && value.back() != ' '));
  }
  Require(request.body.size() <= kLimits.max_body_bytes &&
          (head.chunked || request.body.size() == head.content_length));
  diffserve::IsLoopbackHost(head.Field("host"));
}

// Every request that was read, and "refused" if that was the end; `seed` 0 feeds all bytes at once.
std::vector<std::string> ReadAll(std::string_view bytes, uint32_t seed) {
  diffserve::HttpReader reader(kLimits);
  std::vector<std::string> seen;
  size_t begin = 0;
  do {
    seed = seed * 1664525 + 1013904223 * (seed != 0);
    const size_t piece = seed == 0 ? bytes.size()
                                   : std::min<size_t>(bytes.size() - begin, 1 + (seed >> 16) % 64);
    reader.Feed(bytes.substr(begin, piece));
    begin += piece;
    while (reader.state() == diffserve::HttpReader::State::kReady) {
      const diffserve::HttpRequest request = reader.Take();
      CheckPromises(request);
      seen.push_back(request.head.method + " " + request.head.path + "?" + request.head.query +
                     "\n" + request.body);
      reader.Next();
    }
  } while (begin < bytes.size() && reader.state() != diffserve::HttpReader::State::kRefused);
  if (reader.state() == diffserve::HttpReader::State::kRefused) {
    Require(reader.refusal().status >= 400 && reader.refusal().status < 600 &&
            !reader.refusal().reason.empty());
    seen.push_back("refused");
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Require(ReadAll(bytes, 0) == ReadAll(bytes, data[0] + 1u));
  const size_t end = bytes.find("\r\n\r\n");
  if (end == bytes.npos) return 0;
  const std::string_view raw = bytes.substr(0, end + 4);
  const auto checked = diffserve::CheckHead(raw, kLimits);
  if (const auto* head = std::get_if<diffserve::HttpHead>(&checked))
    Require(diffserve::testing::IsReadAlike(raw, *head));
  return 0;
}
