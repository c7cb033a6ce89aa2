// SPDX-License-Identifier: Apache-2.0
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

// The Accept-Encoding of a reply that refuses a body's coding.
inline constexpr char kAcceptedCodings[] = "gzip, deflate, identity";

// The coding that a Content-Encoding field names; nullopt: it is not supported. An empty field
// names none.
std::optional<ContentCoding> ContentCodingOf(std::string_view field);

// Decodes a body: gzip with one or more members, deflate with or without zlib's wrapping. Refuses
// it with 413 as soon as it has more than `max_bytes`, and with 400 if it is not exactly such a
// stream. REQUIRES: `coding` is not kIdentity.
std::variant<std::string, HttpRefusal> DecodeBody(ContentCoding coding, std::string_view body,
                                                  size_t max_bytes);

}  // namespace diffserve
