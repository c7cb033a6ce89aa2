// SPDX-License-Identifier: Apache-2.0
// The strict parser of request heads: what it accepts is read in one way by every other parser. The
// rules are a table in gate.cc; tests compare what is accepted with what Boost.Beast reads. Pure
// functions of bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "server/http/message.h"

namespace diffserve {

struct HttpLimits {
  size_t max_head_bytes = 16 << 10;  // request line and fields
  size_t max_target_bytes = 8 << 10;
  size_t max_fields = 100;
  size_t max_body_bytes = 4 << 20;
  size_t max_chunks = 16384;              // of one chunked body
  size_t max_extension_bytes = 16 << 10;  // of all its chunks together; read and dropped
  size_t max_trailer_bytes = 4 << 10;     // likewise
};

struct HttpRefusal {
  int status = 400;
  std::string reason;
};

// The refusal of a body that `found` describes: "the body has 5 bytes".
HttpRefusal BodyTooLarge(std::string_view found, size_t max_bytes);

// `head` runs from the request line through the empty line.
std::variant<HttpHead, HttpRefusal> CheckHead(std::string_view head, const HttpLimits& limits);

// The readable part of a head that is incomplete or was refused: method, path and query, and each
// field whose line is well formed. With it, the refusal can have the form that the client expects.
HttpHead ReadableHead(std::string_view bytes);

// Refuses what is wrong before the head is complete, so that no client waits for a timeout: bare CR
// or LF, NUL, no method at the start. The bytes before `begin` have been checked already.
std::optional<HttpRefusal> CheckPartialHead(std::string_view bytes, size_t begin,
                                            const HttpLimits& limits);

// Whether the name of a Host field is a loopback name: "localhost", "127.x.x.x" or "[::1]", with or
// without a port.
bool IsLoopbackHost(std::string_view host);

}  // namespace diffserve
