// SPDX-License-Identifier: Apache-2.0
// UpstreamConnections: idle connections of one event loop to servers on this machine's loopback
// address, kept for the next call to the same port. The loop outlives it.
// Thread safety: only on its loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <optional>
#include <unordered_map>
#include <vector>

namespace diffserve {

class UpstreamConnections {
 public:
  struct Connection {
    boost::asio::ip::tcp::socket socket;
    int calls = 0;  // that it has carried
  };

  explicit UpstreamConnections(boost::asio::io_context& loop) : loop_(loop) {}

  boost::asio::io_context& loop() { return loop_; }
  // A connection that is still open; nullopt: there is none.
  std::optional<Connection> Take(int port);
  // Keeps an idle connection, or closes it if it is used up.
  void Give(int port, Connection connection);

 private:
  struct Idle {
    Connection connection;
    std::chrono::steady_clock::time_point since;
  };
  boost::asio::io_context& loop_;
  std::unordered_map<int, std::vector<Idle>> idle_;  // by port, the oldest first
};

}  // namespace diffserve
