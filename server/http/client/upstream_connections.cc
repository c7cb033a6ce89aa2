// SPDX-License-Identifier: Apache-2.0
#include "server/http/client/upstream_connections.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace diffserve {
namespace {

// Below what our server allows a connection (150 s of idleness, 1000 requests), so that a server
// never closes a connection that is about to be used.
constexpr std::chrono::seconds kMaxIdle{30};
constexpr int kMaxCalls = 500;
constexpr size_t kMaxIdlePerPort = 64;

// Neither closed by the peer nor with bytes that belong to no call.
bool IsQuiet(boost::asio::ip::tcp::socket& socket) {
  char byte;
  const ssize_t n = recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace

std::optional<UpstreamConnections::Connection> UpstreamConnections::Take(int port) {
  const auto found = idle_.find(port);
  if (found == idle_.end()) return std::nullopt;
  std::optional<Connection> taken;
  const auto oldest = std::chrono::steady_clock::now() - kMaxIdle;
  while (!taken && !found->second.empty()) {
    Idle last = std::move(found->second.back());
    found->second.pop_back();
    if (last.since > oldest && IsQuiet(last.connection.socket)) taken = std::move(last.connection);
  }
  if (found->second.empty()) idle_.erase(found);
  return taken;
}

void UpstreamConnections::Give(int port, Connection connection) {
  const auto now = std::chrono::steady_clock::now();
  for (auto it = idle_.begin(); it != idle_.end();) {
    std::erase_if(it->second, [&](const Idle& idle) { return idle.since <= now - kMaxIdle; });
    it = it->second.empty() ? idle_.erase(it) : std::next(it);
  }
  if (connection.calls >= kMaxCalls) return;
  std::vector<Idle>& of_port = idle_[port];
  if (of_port.size() < kMaxIdlePerPort) of_port.push_back({std::move(connection), now});
}

}  // namespace diffserve
