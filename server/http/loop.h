// HttpLoop: one I/O thread and the connections it serves. A connection stays on its loop from Adopt
// to its end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

#include "server/http/message.h"
#include "server/http/server.h"

namespace diffserve {

// What all loops of a server share.
struct HttpShared {
  HttpServerOptions options;
  HttpService service;
  std::atomic<int> connections{0};
  std::atomic<size_t> held_bytes{0};
  std::atomic<bool> stopping{false};

  std::mutex mutex;
  std::condition_variable ended;   // a connection has ended
  std::function<void()> on_ended;  // likewise; called with `mutex` held

  void ConnectionEnded();
};

// How connections are made to end. Idle ones end at once, unless the kernel still delivers.
enum class HttpEnding {
  kAfterReply,
  kWithError,  // a reply that can tell of an error does so soon; others as before
  kNow,        // a reply under way is reset
};

class HttpLoop {
 public:
  explicit HttpLoop(std::shared_ptr<HttpShared> shared);
  ~HttpLoop();  // cuts what is left

  // Takes over a connected socket, which is closed if it throws std::bad_alloc. May be called from
  // any thread, as may StopSessions.
  void Adopt(int socket_fd, bool ipv6);
  void StopSessions(HttpEnding ending);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
