// SPDX-License-Identifier: Apache-2.0
// The address of a socket's peer, by which the queues distinguish clients without a key.
#pragma once

#include <string>

namespace diffserve {

// The peer address of a socket without port. An IPv4 address looks the same on an IPv6 socket; all
// peers of a Unix socket are "unix". Empty if the socket is no longer connected.
std::string PeerAddress(int fd);

inline constexpr char kUnixNetwork[] = "unix";

// The network of a peer address, which is the least that one host is given: an IPv4 address, or the
// /64 of an IPv6 address.
std::string NetworkOf(const std::string& peer_address);

}  // namespace diffserve
