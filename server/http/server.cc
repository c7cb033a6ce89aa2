// SPDX-License-Identifier: Apache-2.0
#include "server/http/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"
#include "server/http/listen/unix_socket_file.h"
#include "server/http/loop.h"
#include "server/http/peer_address.h"

namespace diffserve {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using Stream = asio::generic::stream_protocol;
using ErrorCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr int kMaxConnectionsByDefault = 16384;
constexpr int kMaxEnding = 64;  // connections that have lost their place and are not closed yet
constexpr std::chrono::milliseconds kAcceptRetry{200};  // when files have run out and no connection
                                                        // ends

// Connections that need a little less than half of the limit of open files, after raising that
// limit to its maximum.
int DefaultMaxConnections(int files_per_connection) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 256;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  const auto files = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
  return std::clamp(files / 2 / files_per_connection - 8, 8, kMaxConnectionsByDefault);
}

HttpServerOptions WithMaxConnections(HttpServerOptions options) {
  if (options.max_connections == 0)
    options.max_connections = DefaultMaxConnections(options.files_per_connection);
  return options;
}

bool IsShortage(const ErrorCode& error) {
  return error == asio::error::no_descriptors || error.value() == ENFILE ||
         error == asio::error::no_memory || error == asio::error::no_buffer_space;
}

// REQUIRES: an address of TCP.
int PortOf(const Stream::endpoint& address) {
  tcp::endpoint as_tcp;
  as_tcp.resize(address.size());
  std::memcpy(as_tcp.data(), address.data(), address.size());
  return as_tcp.port();
}

}  // namespace

// Accepts on a thread of its own, which sleeps between connections, and hands the sockets to the
// loops in turn.
struct HttpServer::Impl {
  Impl(HttpServerOptions options, HttpService service)
      : shared(std::make_shared<HttpShared>(WithMaxConnections(std::move(options)),
                                            std::move(service))) {}

  Status Listen();
  Status ListenOnPort();
  Status ListenOnUnixSocket();
  void Run();
  void Accept();
  void OnAccepted(ErrorCode error, Stream::socket socket);
  void Admit(Stream::socket socket);
  bool IsShortageLogDue();
  void PauseAccept();
  void OnConnectionEnded();

  const std::shared_ptr<HttpShared> shared;
  std::vector<std::unique_ptr<HttpLoop>> loops;
  asio::io_context context{1};
  asio::basic_socket_acceptor<Stream> acceptor{context};
  UnixSocketFile unix_socket;
  asio::steady_timer accept_timer{context};
  std::optional<Stream::socket> waiting;  // accepted, and there is no place for it
  size_t next_loop = 0;
  Clock::time_point last_pause_log{}, last_shortage_log{};
  std::atomic<bool> accept_paused{false};
  int family = AF_INET;
  int bound_port = 0;
  std::thread thread;
};

Status HttpServer::Impl::Listen() {
  return shared->options.unix_socket.empty() ? ListenOnPort() : ListenOnUnixSocket();
}

Status HttpServer::Impl::ListenOnUnixSocket() {
  const std::string& path = shared->options.unix_socket;
  family = AF_UNIX;
  ErrorCode error;
  acceptor.open(Stream(family, 0), error);
  if (!error) DS_RETURN_IF_ERROR(unix_socket.Bind(acceptor.native_handle(), path));
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) return {};
  return Status(StatusCode::kUnavailable, "cannot listen on unix:" + path + ": " + error.message());
}

Status HttpServer::Impl::ListenOnPort() {
  const HttpServerOptions& options = shared->options;
  const std::string where = options.host + ":" + std::to_string(options.port);
  ErrorCode error;
  const auto address = asio::ip::make_address(
      options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) return NotAllowed(where + ": the host is a name", "an IP address, localhost", "host");
  family = address.is_v6() ? AF_INET6 : AF_INET;
  const tcp::endpoint endpoint(address, static_cast<unsigned short>(options.port));
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  // Called so that accepting continues with waiting connections if the next one is closed already.
  if (!error) acceptor.set_option(asio::socket_base::enable_connection_aborted(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) bound_port = PortOf(acceptor.local_endpoint(error));
  if (error)
    return Status(StatusCode::kUnavailable,
                  "cannot listen on http://" + where + ": " + error.message(), "port");
  return {};
}

void HttpServer::Impl::Accept() {
  if (!acceptor.is_open() || shared->stopping) return;
  if (shared->connections >= shared->options.max_connections + kMaxEnding) return PauseAccept();
  if (waiting) return Admit(*std::exchange(waiting, std::nullopt));
  acceptor.async_accept(
      [this](ErrorCode error, Stream::socket socket) { OnAccepted(error, std::move(socket)); });
}

void HttpServer::Impl::Run() {
  const auto work = asio::make_work_guard(context);
  Accept();
  context.run();
}

void HttpServer::Impl::OnAccepted(ErrorCode error, Stream::socket socket) {
  if (error == asio::error::operation_aborted || shared->stopping) return;
  if (error) return IsShortage(error) ? PauseAccept() : Accept();
  Admit(std::move(socket));
}

void HttpServer::Impl::Admit(Stream::socket socket) {
  const std::string network = NetworkOf(PeerAddress(socket.native_handle()));
  ConnectionTable::Admission admission = shared->table.Admit(network);
  const std::string connections = std::to_string(shared->connections.load());
  if (admission.has_ended_other && IsShortageLogDue()) {
    Log(LogLevel::kWarning, "http_idle_ended", {{"for", network}, {"connections", connections}});
  }
  if (admission.is_share_used) {  // the new connection ends with its socket
    if (IsShortageLogDue()) {
      Log(LogLevel::kWarning, "http_connection_refused",
          {{"for", network}, {"connections", connections}});
    }
  } else if (admission.entry == nullptr) {
    waiting = std::move(socket);
    return PauseAccept();
  } else {
    ErrorCode error;
    const int fd = socket.release(error);
    if (!error) loops[next_loop++ % loops.size()]->Adopt(fd, family, std::move(admission.entry));
  }
  Accept();
}

// At most once per second.
bool HttpServer::Impl::IsShortageLogDue() {
  if (Clock::now() - last_shortage_log <= std::chrono::seconds(1)) return false;
  last_shortage_log = Clock::now();
  return true;
}

// Waits until a connection ends, or for a while if none does. The kernel's backlog holds new
// connections meanwhile.
void HttpServer::Impl::PauseAccept() {
  if (Clock::now() - last_pause_log > std::chrono::seconds(1)) {
    last_pause_log = Clock::now();
    Log(LogLevel::kWarning, "http_accept_paused",
        {{"connections", std::to_string(shared->connections.load())}});
  }
  accept_paused = true;
  accept_timer.expires_after(kAcceptRetry);
  accept_timer.async_wait([this](ErrorCode) {
    if (accept_paused.exchange(false)) Accept();
  });
}

void HttpServer::Impl::OnConnectionEnded() {
  if (accept_paused.load()) asio::post(context, [this] { accept_timer.cancel(); });
}

HttpServer::HttpServer(HttpServerOptions options, HttpService service)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(service))) {}

HttpServer::~HttpServer() { Stop(std::chrono::milliseconds(0)); }

Status HttpServer::Start() {
  Impl& impl = *impl_;
  DS_RETURN_IF_ERROR(impl.Listen());
  for (int i = 0; i < std::max(1, impl.shared->options.io_threads); ++i) {
    impl.loops.push_back(std::make_unique<HttpLoop>(impl.shared));
  }
  {
    std::lock_guard lock(impl.shared->mutex);
    impl.shared->on_ended = [&impl] { impl.OnConnectionEnded(); };
  }
  impl.thread = std::thread([&impl] {
    const NamedThread named("http-accept", "the network");
    impl.Run();
  });
  return {};
}

int HttpServer::port() const { return impl_->bound_port; }
int HttpServer::num_connections() const { return impl_->shared->connections; }

void HttpServer::Stop(std::chrono::milliseconds patience, std::chrono::milliseconds last_words) {
  Impl& impl = *impl_;
  if (!impl.thread.joinable()) return;
  impl.shared->stopping = true;
  asio::post(impl.context, [&impl] {
    ErrorCode ignored;
    impl.acceptor.close(ignored);
    impl.waiting.reset();
    impl.unix_socket.Remove();
    impl.context.stop();
  });
  impl.thread.join();
  const auto none_left = [&impl] { return impl.shared->connections == 0; };
  // The handlers of a closed connection need a moment to release it.
  const std::pair<HttpEnding, std::chrono::milliseconds> endings[] = {
      {HttpEnding::kAfterReply, patience},
      {HttpEnding::kWithError, last_words},
      {HttpEnding::kNow, std::chrono::milliseconds(1000)}};
  for (const auto& [ending, time] : endings) {
    for (const auto& loop : impl.loops) loop->StopSessions(ending);
    std::unique_lock lock(impl.shared->mutex);
    impl.shared->ended.wait_for(lock, time, none_left);
  }
  {
    std::lock_guard lock(impl.shared->mutex);
    impl.shared->on_ended = nullptr;
  }
  impl.loops.clear();
}

}  // namespace diffserve
