// SPDX-License-Identifier: Apache-2.0
#include "server/http/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace diffserve {
namespace {

constexpr int kNetworkBytes = 8;  // of an IPv6 address

}  // namespace

std::string PeerAddress(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char text[INET6_ADDRSTRLEN] = "";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  if (address.ss_family == AF_UNIX) return kUnixNetwork;
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

std::string NetworkOf(const std::string& peer_address) {
  in6_addr ipv6{};
  if (inet_pton(AF_INET6, peer_address.c_str(), &ipv6) != 1) return peer_address;
  std::fill(std::begin(ipv6.s6_addr) + kNetworkBytes, std::end(ipv6.s6_addr), uint8_t{0});
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &ipv6, text, sizeof(text));
  return std::string(text) + "/64";
}

}  // namespace diffserve
