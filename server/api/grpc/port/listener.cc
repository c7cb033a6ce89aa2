// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/port/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"
#include "server/http/peer_address.h"

namespace diffserve {
namespace {

constexpr double kConnectionShare = 0.25;
constexpr int kKeptForOthers = 8;  // an eighth of what is free
constexpr std::chrono::milliseconds kCountAgain{100};

class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  void Release() { fd_ = -1; }

 private:
  int fd_;
};

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

// Listens on the first address of the host that works; else errno's text for the last.
Result<OwnedFd> Listen(const GrpcListenerOptions& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
  const int error = getaddrinfo(host.c_str(), std::to_string(options.port).c_str(), &hints, &found);
  std::string reason = gai_strerror(error);
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(error == 0 ? found : nullptr);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    OwnedFd fd(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (fd.get() >= 0) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const bool listens = fd.get() >= 0 &&
                         bind(fd.get(), address->ai_addr, address->ai_addrlen) == 0 &&
                         listen(fd.get(), options.backlog) == 0;
    if (listens) return fd;
    reason = std::strerror(errno);
  }
  const bool is_ipv6 = options.host.find(':') != std::string::npos;
  return Status(StatusCode::kUnavailable,
                "cannot listen for gRPC on " + (is_ipv6 ? "[" + options.host + "]" : options.host) +
                    ":" + std::to_string(options.port) + ": " + reason,
                "--grpc-port");
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// The system gives the lowest free number, so a high one means that few are left.
int HighestDescriptor(double share) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(static_cast<double>(std::min<rlim_t>(limit.rlim_cur, 1 << 20)) * share);
}

// Distinguishes a socket from a later one with the same descriptor; 0: it is closed.
ino_t NumberOf(int fd) {
  struct stat info{};
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

// The sockets that were given to gRPC, which closes them without a word. So those of a network are
// counted again when it seems to hold its share. Only on the listener's thread.
class GivenSockets {
 public:
  explicit GivenSockets(int max) : max_(max) {}

  bool HasRoomFor(const std::string& network) {
    if (IsBelowShare(network)) return true;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_count_) return false;
    next_count_ = now + kCountAgain;
    std::erase_if(sockets_, [this](const auto& socket) {
      if (NumberOf(socket.first) == socket.second.number) return false;
      Uncount(socket.second.network);
      return true;
    });
    return IsBelowShare(network);
  }
  void Add(int fd, std::string network) {
    ++counts_[network];
    Given& given = sockets_[fd];  // an earlier one with this descriptor is closed
    if (given.number != 0) Uncount(given.network);
    given = {NumberOf(fd), std::move(network)};
  }

 private:
  struct Given {
    ino_t number = 0;
    std::string network;
  };

  bool IsBelowShare(const std::string& network) const {
    const auto found = counts_.find(network);
    const int own = found == counts_.end() ? 0 : found->second;
    const int free = max_ - (static_cast<int>(sockets_.size()) - own);
    return own < free - free / kKeptForOthers;
  }
  void Uncount(const std::string& network) {
    const auto found = counts_.find(network);
    if (--found->second == 0) counts_.erase(found);
  }

  const int max_;
  std::unordered_map<int, Given> sockets_;       // by descriptor
  std::unordered_map<std::string, int> counts_;  // by network
  std::chrono::steady_clock::time_point next_count_{};
};

}  // namespace

struct GrpcListener::Impl {
  explicit Impl(int max_connections) : given(max_connections) {}

  void Run();
  bool AcceptAll();  // false if descriptors have run out
  void WarnOnceASecond(const char* what, const std::string& network = {});

  GrpcListenerOptions options;
  OwnedFd socket;
  OwnedFd stop_event;
  int port = 0;
  int highest_descriptor = 0;
  GivenSockets given;
  std::chrono::steady_clock::time_point next_warning{};
  std::function<void(int fd)> on_socket;
  std::thread thread;
  std::once_flag stopped;
};

bool GrpcListener::Impl::AcceptAll() {
  while (true) {
    const int fd = accept4(socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
                             errno == ENOMEM;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return !exhausted;
    }
    if (fd > highest_descriptor) {
      close(fd);
      WarnOnceASecond("too many connections");
      continue;
    }
    OwnedFd accepted(fd);
    std::string network = NetworkOf(PeerAddress(fd));
    if (!given.HasRoomFor(network)) {
      WarnOnceASecond("its address holds its share of the connections", network);
      continue;
    }
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    given.Add(fd, std::move(network));
    on_socket(fd);
    accepted.Release();
  }
}

void GrpcListener::Impl::WarnOnceASecond(const char* what, const std::string& network) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_warning) return;
  next_warning = now + std::chrono::seconds(1);
  Log(LogLevel::kWarning, "grpc_connection_refused", {{"reason", what}, {"for", network}});
}

void GrpcListener::Impl::Run() {
  bool exhausted = false;
  while (true) {
    pollfd waits[2] = {{stop_event.get(), POLLIN, 0}, {socket.get(), POLLIN, 0}};
    poll(waits, exhausted ? 1 : 2, exhausted ? options.retry_ms : -1);
    if (waits[0].revents != 0) return;
    exhausted = !AcceptAll();
    if (exhausted) WarnOnceASecond("no file descriptor is left");
  }
}

GrpcListener::GrpcListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcListener::~GrpcListener() { Stop(); }

Result<std::unique_ptr<GrpcListener>> GrpcListener::Open(const GrpcListenerOptions& options) {
  Result<OwnedFd> socket = Listen(options);
  if (!socket.ok()) return socket.status();
  auto impl = std::make_unique<Impl>(
      options.max_connections > 0 ? options.max_connections : HighestDescriptor(kConnectionShare));
  impl->options = options;
  impl->socket = std::move(socket).value();
  impl->port = PortOf(impl->socket.get());
  impl->stop_event = OwnedFd(eventfd(0, EFD_CLOEXEC));
  impl->highest_descriptor = HighestDescriptor(options.descriptor_share);
  if (impl->stop_event.get() < 0)
    return Status(StatusCode::kUnavailable, std::string("eventfd: ") + std::strerror(errno));
  return std::unique_ptr<GrpcListener>(new GrpcListener(std::move(impl)));
}

int GrpcListener::port() const { return impl_->port; }

void GrpcListener::Start(std::function<void(int fd)> on_socket) {
  impl_->on_socket = std::move(on_socket);
  impl_->thread = std::thread([impl = impl_.get()] {
    const NamedThread named("grpc-accept", "the network");
    impl->Run();
  });
}

void GrpcListener::Stop() {
  std::call_once(impl_->stopped, [this] {
    const uint64_t one = 1;
    if (write(impl_->stop_event.get(), &one, sizeof(one)) != sizeof(one))
      Log(LogLevel::kError, "grpc_listener_stop_failed");
    if (impl_->thread.joinable()) impl_->thread.join();
    impl_->socket = OwnedFd();
  });
}

}  // namespace diffserve
