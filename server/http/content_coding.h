// The content codings of request bodies. The home of zlib.
// Thread safety: pure functions; DecodeBody takes milliseconds and so belongs on a text thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "server/http/gate.h"

namespace diffserve {

enum class ContentCoding { kIdentity, kGzip, kDeflate };

// What Accept-Encoding says of a body whose coding is not taken.
inline constexpr char kAcceptedCodings[] = "gzip, deflate, identity";

// Of a Content-Encoding field's value; nullopt: it is not taken. An empty one says that there is
// none.
std::optional<ContentCoding> ContentCodingOf(std::string_view field);

// The body without its coding: gzip with one or more members, deflate with or without zlib's
// wrapping. Refused with 413 as soon as it has more than `max_bytes`, with 400 if it is no such
// stream from its first byte to its last. REQUIRES: `coding` is not kIdentity.
std::variant<std::string, HttpRefusal> DecodeBody(ContentCoding coding, std::string_view body,
                                                  size_t max_bytes);

}  // namespace diffserve
