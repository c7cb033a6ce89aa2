// SPDX-License-Identifier: Apache-2.0
// The address of a socket's peer, by which the queues distinguish clients without a key.
#pragma once

#include <string>

namespace diffserve {

// The peer address of a socket without port. An IPv4 address looks the same on an IPv6 socket; all
// peers of a Unix socket are "unix". Empty if the socket is no longer connected.
std::string PeerAddress(int fd);

}  // namespace diffserve
