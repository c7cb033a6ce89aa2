// SPDX-License-Identifier: Apache-2.0
// URLs of servers, http://HOST:PORT[/PATH], and paths of requests.
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace diffserve {

struct HttpUrl {
  std::string host;  // an IPv6 address without its brackets
  std::string port;
  std::string path = "/readyz";

  std::string Authority() const;  // as in the Host header
};

// An address where a server may listen.
struct ServerPlace {
  HttpUrl url;
  std::string unix_socket = {};  // connect to this path, and to no host; empty: to the URL's host
};

Result<HttpUrl> ParseHttpUrl(std::string_view text);
// The same, or unix:PATH of a Unix socket.
Result<ServerPlace> ParseServerPlace(std::string_view text);

// Parses --url of chat: http://HOST:PORT, or with /v1 as OpenAI's clients take it. The path is
// empty.
Result<HttpUrl> ParseServerUrl(std::string_view text);

// The value of a query's parameter; empty if it is absent.
std::string_view QueryParameter(std::string_view query, std::string_view name);

// One pass of percent-decoding; nothing if it is malformed.
std::string PercentDecoded(std::string_view text);

}  // namespace diffserve
