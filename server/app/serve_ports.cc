// SPDX-License-Identifier: Apache-2.0
#include "server/app/serve_ports.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "kernels/base/thread_pool.h"
#include "server/api/grpc/port/options.h"

namespace diffserve {
namespace {

constexpr int kMaxHttpThreads = 2;
constexpr int kLargeBytes = 1 << 20;
// Longer than proxies in front keep an idle connection (60 to 120 s), or requests get lost.
constexpr std::chrono::seconds kIdleTimeout{150};
// What a parent may add to a head or to metadata that is just within its own limits: Host,
// Content-Length and the client's name; a space in each field; in metadata also gRPC's own fields.
constexpr size_t kParentFields = 3;
constexpr size_t kParentBytes = 1 << 10;

}  // namespace

void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void ReturnFreedMemory() { mallopt(M_MMAP_THRESHOLD, kLargeBytes); }

bool ChecksHosts(const ServeOptions& serve, const ApiKeys& keys) {
  const std::string& host = serve.host;
  const bool is_loopback = host == "localhost" || host == "::1" || host.starts_with("127.");
  return is_loopback && serve.unix_socket.empty() && !keys.required();
}

std::string Address(const std::string& host, int port) {
  const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return shown + ":" + std::to_string(port);
}

std::string HttpAddress(const ServeOptions& serve, int port) {
  return serve.unix_socket.empty() ? Address(serve.host, port) : "unix:" + serve.unix_socket;
}

int TextThreads() { return std::max(2, AvailableCpus() / 4); }

HttpServerOptions HttpPortOptions(const ServeOptions& serve) {
  HttpServerOptions http;
  http.unix_socket = serve.unix_socket;
  http.host = serve.host;
  http.port = serve.port;
  http.limits.max_body_bytes = static_cast<size_t>(serve.max_body_size.bytes);
  if (!serve.parent_secret.empty()) {
    http.limits.max_fields += kParentFields;
    http.limits.max_head_bytes += kParentBytes;
  }
  http.idle_timeout = kIdleTimeout;
  http.io_threads = std::min(kMaxHttpThreads, AvailableCpus());
  return http;
}

int MaxMetadataBytes(const ServeOptions& serve) {
  const int own = GrpcServerOptions().max_metadata_bytes;
  return serve.parent_secret.empty() ? own : own + static_cast<int>(kParentBytes);
}

}  // namespace diffserve
