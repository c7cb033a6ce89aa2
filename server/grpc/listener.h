// GrpcListener: the listening socket of the gRPC port and the thread that accepts from it. gRPC
// 1.51's own listener stops for good when file descriptors run out; this one waits and goes on, and
// keeps some descriptors back for the rest of the process.
//
// Thread safety: `on_socket` runs on the listener's thread; the rest may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/base/status.h"

namespace diffserve {

struct GrpcListenerOptions {
  std::string host = "127.0.0.1";  // an address, or a name of which the first address that can be
                                   // bound is taken
  int port = 0;                    // 0: a free one
  int backlog = 512;
  int retry_ms = 100;              // after descriptors have run out
  double descriptor_share = 0.75;  // of the process's limit; a connection that would go beyond is
                                   // closed at once
};

class GrpcListener {
 public:
  // `on_socket` takes a connected, non-blocking socket over. Error: kUnavailable with the address
  // and what the system says.
  static Result<std::unique_ptr<GrpcListener>> Open(const GrpcListenerOptions& options);
  ~GrpcListener();  // Stop

  int port() const;
  // A socket is closed for which `on_socket` throws std::bad_alloc.
  void Start(std::function<void(int fd)> on_socket);
  void Stop();  // accepts no more; idempotent

 private:
  struct Impl;
  explicit GrpcListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
