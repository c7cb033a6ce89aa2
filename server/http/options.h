// SPDX-License-Identifier: Apache-2.0
// HttpServerOptions: the address, the timeouts and the limits of an HTTP port. A value.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "server/http/gate.h"

namespace diffserve {

struct HttpServerOptions {
  std::string unix_socket;         // path of a Unix socket, instead of host and port
  std::string host = "127.0.0.1";  // an address or "localhost"
  int port = 8000;                 // 0: a free port
  int io_threads = 1;
  HttpLimits limits;
  int max_connections = 0;       // 0: with a little less than half of the limit of open files
  int files_per_connection = 1;  // that are open while it is answered
  // False: a connection whose request is not whole may have to go for another, as an idle one may.
  bool begun_requests_keep_place = true;
  int max_requests_per_connection = 1000;
  size_t max_held_bytes = size_t{256} << 20;  // request bytes of all connections together; more are
                                              // refused with 503
  // From its first byte to the head's end, and before the first byte of the first request.
  std::chrono::milliseconds head_timeout{10'000};
  std::chrono::milliseconds idle_timeout{60'000};  // after a reply, before the next request
  std::chrono::milliseconds body_grace{5'000};     // then body_bytes_per_second is required
  size_t body_bytes_per_second = 1024;
  std::chrono::milliseconds write_stall_timeout{30'000};  // a peer that takes no byte for longer
                                                          // is cut off
  std::chrono::milliseconds linger_timeout{2'000};  // for the peer to close after the last reply,
                                                    // after the kernel has delivered it
  int send_buffer_bytes = 128 << 10;                // the kernel's, per connection
  std::chrono::milliseconds ping_interval{0};  // of silence, after which HttpReply::ping is sent;
                                               // 0: never
};

}  // namespace diffserve
