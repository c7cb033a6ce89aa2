// SPDX-License-Identifier: Apache-2.0
#include "server/client_identity.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>

namespace diffserve {

std::string PeerAddress(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char text[INET6_ADDRSTRLEN] = "";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
  } else if (address.ss_family == AF_INET6) {
    const in6_addr& ipv6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&ipv6);
    inet_ntop(mapped ? AF_INET : AF_INET6, mapped ? ipv6.s6_addr + 12 : ipv6.s6_addr, text,
              sizeof(text));
  }
  return text;
}

std::string ClientName(const ApiKeys& keys, std::string_view key, std::string_view address) {
  if (!keys.required()) return std::string(address);
  const std::optional<size_t> index = keys.Find(key);
  return index ? "key:" + std::to_string(*index) : std::string();
}

std::string ClientName(const ApiKeys& keys, const HttpRequest& request) {
  const HttpHead& head = request.head;
  const std::string_view key = head.HasField("authorization")
                                   ? ApiKeys::BearerToken(head.Field("authorization"))
                                   : head.Field("x-api-key");
  return ClientName(keys, key, request.peer);
}

}  // namespace diffserve
