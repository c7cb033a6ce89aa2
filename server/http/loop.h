// SPDX-License-Identifier: Apache-2.0
// HttpLoop: one I/O thread and its connections. A connection stays on its loop from Adopt to its
// end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "server/http/listen/connection_table.h"
#include "server/http/message.h"
#include "server/http/request_memory.h"
#include "server/http/server.h"

namespace diffserve {

// Shared by all loops of a server.
struct HttpShared {
  HttpShared(HttpServerOptions options_in, HttpService service_in)
      : options(std::move(options_in)),
        service(std::move(service_in)),
        table(options.max_connections) {}

  const HttpServerOptions options;
  HttpService service;
  ConnectionTable table;
  std::atomic<int> connections{0};
  RequestMemory held_bytes{options.max_held_bytes};
  std::atomic<bool> stopping{false};

  std::mutex mutex;
  std::condition_variable ended;   // a connection has ended
  std::function<void()> on_ended;  // likewise; called with `mutex` held

  void ConnectionEnded();
};

// How Stop ends connections. Idle ones end at once, unless the kernel still delivers a reply.
enum class HttpEnding {
  kAfterReply,
  kWithError,  // replies with error events end soon with one; others continue
  kNow,        // running replies are reset
};

class HttpLoop {
 public:
  explicit HttpLoop(std::shared_ptr<HttpShared> shared);
  ~HttpLoop();  // cuts the remaining connections

  // Takes ownership of a connected socket. May be called from any thread, as may StopSessions.
  // `family`: AF_INET, AF_INET6 or AF_UNIX.
  void Adopt(int socket_fd, int family, std::unique_ptr<ConnectionTable::Entry> entry);
  void StopSessions(HttpEnding ending);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
