// HttpServer: HTTP/1.1 on one or two I/O threads. It owns sockets, timers and the framing of
// replies; what a request means is the HttpService's affair. Each connection lives on one thread
// and is served strictly one request after another.
//
// A client that goes away (FIN or RST) while its answer is made loses the exchange at once, which
// cancels the work; so a connection is always read. Of later requests 64 KiB are kept meanwhile:
// where more come they are dropped, and the connection ends after the reply. A stream is asked for
// more bytes only when the socket has taken the previous ones.
// Thread safety: Start, Stop from one thread; the rest from any.
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
  std::string host = "127.0.0.1";  // an address or "localhost"
  int port = 8000;                 // 0: a free one
  int io_threads = 1;
  HttpLimits limits;
  int max_connections = 0;  // 0: a little less than half of what files may be open
  int max_requests_per_connection = 1000;
  size_t max_held_bytes = size_t{256} << 20;  // request bytes of all connections together; more is
                                              // refused with 503
  std::chrono::milliseconds head_timeout{10'000};  // from its first byte to the head's end
  std::chrono::milliseconds idle_timeout{60'000};  // before the first byte of a request
  std::chrono::milliseconds body_grace{5'000};     // then a body must come at body_bytes_per_second
  size_t body_bytes_per_second = 1024;
  std::chrono::milliseconds write_stall_timeout{30'000};  // a peer that takes no byte for so long
                                                          // is cut off
  std::chrono::milliseconds linger_timeout{2'000};  // for the peer to close after the last reply,
                                                    // beyond what the kernel takes to deliver it
  int send_buffer_bytes = 128 << 10;                // the kernel's, a connection
  std::chrono::milliseconds ping_interval{0};  // of silence, after which HttpReply::ping is sent;
                                               // 0: never
};

class HttpServer {
 public:
  HttpServer(HttpServerOptions options, HttpService service);
  ~HttpServer();  // Stop without patience

  // Binds, listens and starts the threads. Error: the address and what the system says.
  Status Start();
  int port() const;  // the one in use; REQUIRES: started
  // Accepts no more, closes idle connections at once and the others after their reply. What is left
  // after `patience` ends with an error event as far as it can, and after `last_words` more with a
  // reset. Idempotent. Readiness and new work during a drain are the service's
  // affair: the server answers until Stop.
  void Stop(std::chrono::milliseconds patience, std::chrono::milliseconds last_words = {});
  int num_connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
