// SPDX-License-Identifier: Apache-2.0
// What an answer of a hub that is no success means for the user: one line that says what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "server/hub/hub_settings.h"
#include "server/hub/model_name.h"

namespace diffserve {

// The head of an HTTP answer. The texts are the hub's own headers; empty: without it.
struct HubAnswer {
  long status = 0;                      // 0: no answer
  std::string error_code;               // X-Error-Code
  std::string error_message;            // X-Error-Message
  std::string content_range;            // Content-Range
  std::string content_encoding;         // Content-Encoding, which was not asked for
  std::string etag;                     // ETag, without quotes
  std::string linked_etag;              // X-Linked-ETag: of the large file where the answer leads
  std::optional<uint64_t> length;       // Content-Length
  std::optional<uint64_t> linked_size;  // X-Linked-Size
  std::optional<int> retry_after_s;     // Retry-After, or the end of the RateLimit window
  std::string transport_error;          // libcurl's words, if there is no whole answer
  bool is_certificate_error = false;    // the hub's certificate is not trusted
  bool is_bad_location = false;         // no other try can follow where the answer leads
  bool is_success() const { return status == 200 || status == 206; }
};

// The bounds of "bytes FIRST-LAST/SIZE"; nullopt: it is something else.
struct ByteRange {
  uint64_t first = 0, size = 0;
};
std::optional<ByteRange> ParseContentRange(const std::string& text);

// Whether another try may help: no whole answer, 408, 429, or an error of the server.
bool MayPass(const HubAnswer& answer);

// kUnavailable: the hub could not be asked. kNotFound: the revision does not exist. Any other: it
// refused. `url` is what was asked.
Status ErrorOf(const HubAnswer& answer, const std::string& url, const HubName& name,
               const HubSettings& settings);

}  // namespace diffserve
