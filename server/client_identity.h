// Who sent a request, as far as the lines in which requests wait need to tell clients apart.
// Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "server/api_key.h"
#include "server/http/message.h"

namespace diffserve {

// The address at the other end of a socket, without port: an IPv4 address looks the same on an IPv6
// socket. Empty if the socket has no other end any more.
std::string PeerAddress(int fd);

// "key:N" for the N-th key if keys are required, never the key itself; else the address. Empty if
// the key is not accepted.
std::string ClientName(const ApiKeys& keys, std::string_view key, std::string_view address);

// The same of an HTTP request.
std::string ClientName(const ApiKeys& keys, const HttpRequest& request);

}  // namespace diffserve
