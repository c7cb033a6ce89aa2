// SPDX-License-Identifier: Apache-2.0
// GrpcListener: the listening socket of the gRPC port and the thread that accepts from it. gRPC
// 1.51's own listener stops forever when file descriptors run out. This one waits and continues,
// and reserves some descriptors for the rest of the process.
//
// Thread safety: `on_socket` runs on the listener's thread; all else may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/base/status.h"

namespace diffserve {

struct GrpcListenerOptions {
  std::string host = "127.0.0.1";  // an address, or a name; of its addresses the first that can be
                                   // bound is used
  int port = 0;                    // 0: a free port
  int backlog = 512;
  int retry_ms = 100;              // after descriptors have run out
  double descriptor_share = 0.75;  // of the process's limit; a connection beyond it is
                                   // closed at once
  // An eighth of what other networks leave is kept for others. 0: a quarter of the process's
  // descriptors, which HTTP's half and `descriptor_share` leave.
  int max_connections = 0;
};

class GrpcListener {
 public:
  // `on_socket` takes ownership of a connected, non-blocking socket. Error: kUnavailable with the
  // address and the system's message.
  static Result<std::unique_ptr<GrpcListener>> Open(const GrpcListenerOptions& options);
  ~GrpcListener();  // Stop

  int port() const;
  void Start(std::function<void(int fd)> on_socket);
  void Stop();  // accepts no more; idempotent

 private:
  struct Impl;
  explicit GrpcListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
