// SPDX-License-Identifier: Apache-2.0
// Replies as bytes: status line, fields, and the chunks of a streamed body.
#pragma once

#include <string>
#include <string_view>

#include "server/http/message.h"

namespace diffserve {

struct ReplyFraming {
  int minor_version = 1;  // the request's
  bool keep_alive = true;
  bool head_only = false;  // the request was HEAD: same fields, no body
};

// Appends status line and fields, and the body unless the reply streams. A streamed body is chunked
// (HTTP/1.1) or ends with the connection.
std::string ReplyText(const HttpReply& reply, const ReplyFraming& framing);
void AppendChunk(std::string_view bytes, std::string* out);  // nothing if `bytes` is empty
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace diffserve
