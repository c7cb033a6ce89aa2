// SPDX-License-Identifier: Apache-2.0
// HttpShared: what all connections of a server share. HttpEnding: how they end.
// Thread safety: any thread may use it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "server/http/listen/connection_table.h"
#include "server/http/message.h"
#include "server/http/options.h"
#include "server/http/request_memory.h"

namespace diffserve {

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

  void ConnectionEnded() {
    --connections;
    std::lock_guard lock(mutex);
    ended.notify_all();
    if (on_ended) on_ended();
  }
};

// How Stop ends connections. Idle ones end at once, unless the kernel still delivers a reply.
enum class HttpEnding {
  kAfterReply,
  kWithError,  // replies with error events end soon with one; others continue
  kNow,        // running replies are reset
};

}  // namespace diffserve
