// The URLs that this program asks, http://HOST:PORT[/PATH], and the paths that it is asked for.
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

Result<HttpUrl> ParseHttpUrl(std::string_view text);

// --url of chat: http://HOST:PORT, also as OpenAI's clients are told it, with /v1. The path is
// empty.
Result<HttpUrl> ParseServerUrl(std::string_view text);

// The value of a parameter of a query, empty if it is not there.
std::string_view QueryParameter(std::string_view query, std::string_view name);

// One pass of percent-decoding; nothing if it is malformed.
std::string PercentDecoded(std::string_view text);

}  // namespace diffserve
