// SPDX-License-Identifier: Apache-2.0
// HttpServer: HTTP/1.1 on a few I/O threads. It owns sockets, timers and the framing of replies;
// the HttpService interprets requests. Each connection belongs to one thread, which serves its
// requests strictly in order.
//
// If a client closes its connection (FIN or RST) during its answer, the exchange is destroyed at
// once, which cancels the work; for this, connections are always read. Up to 64 KiB of later
// requests are kept meanwhile; beyond that they are dropped, and the connection ends after the
// reply. A stream is asked for more bytes only when the socket has taken the previous ones.
// Thread safety: Start and Stop from one thread; the rest from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "kernels/base/status.h"
#include "server/http/gate.h"
#include "server/http/message.h"

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

class HttpServer {
 public:
  HttpServer(HttpServerOptions options, HttpService service);
  ~HttpServer();  // Stop without waiting

  // Binds, listens and starts the threads. Error: the address and the system's message. The file of
  // a Unix socket lasts until Stop.
  Status Start();
  int port() const;  // the port in use, 0 with a Unix socket; REQUIRES: started
  // Stops accepting, closes idle connections at once and the others after their reply. Replies that
  // remain after `patience` end with an error event if their format has one, and after another
  // `last_words` with a reset. Idempotent. The service refuses new work during a drain: the server
  // itself answers until Stop.
  void Stop(std::chrono::milliseconds patience, std::chrono::milliseconds last_words = {});
  int num_connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
