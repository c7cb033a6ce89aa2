// SPDX-License-Identifier: Apache-2.0
// CrossOrigin: which web pages of other origins may use the server, by the Fetch standard's CORS
// protocol. A page's origin is in the Origin field. Before a request with a JSON body, a key or the
// method DELETE, the browser sends a preflight, which carries no key. It sends a POST without a
// content type, or with that of a form or of plain text, without one, and each GET.
// Thread safety: immutable.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/http/message.h"

namespace diffserve {

class CrossOrigin {
 public:
  CrossOrigin() = default;  // allows no other origin
  // Each of `lists` names origins (scheme://host[:port]) separated by commas, or "*" for all. The
  // error names the invalid origin.
  static Result<CrossOrigin> Parse(const std::vector<std::string>& lists);

  // The answer to a preflight of an allowed origin; nullopt: `head` is not such a preflight.
  std::optional<HttpReply> Preflight(const HttpHead& head) const;
  // Whether a web page of another origin that is not allowed sends `head`, as the browser says by
  // Sec-Fetch-Site, or by Origin where it sends only that (to an address without TLS that is not
  // this machine's, or an old browser). No page can set either field. "null" is the origin of
  // sandboxed frames and files.
  bool IsForeign(const HttpHead& head) const;
  // Fields of every reply to a request with this Origin field; empty: there is none, or it could
  // not be read.
  void AddFields(std::string_view origin, HttpReply* reply) const;

 private:
  bool Allows(std::string_view origin) const;

  std::vector<std::string> origins_;  // or only "*"
};

}  // namespace diffserve
