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
#include <memory>

#include "kernels/base/status.h"
#include "server/http/message.h"
#include "server/http/options.h"

namespace diffserve {

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
