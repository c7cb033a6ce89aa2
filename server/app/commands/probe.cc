// SPDX-License-Identifier: Apache-2.0
// `diffserve probe`: checks whether the server at a URL is ready, for systems without curl. One
// request with one deadline.
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

#include "server/app/commands/commands.h"
#include "server/http/url.h"

namespace diffserve {
namespace {

using std::chrono::steady_clock;

// For the whole probe: less than the 5 s that the image allows its health check.
constexpr std::chrono::seconds kTimeout{4};
constexpr size_t kMaxAnswerBytes = 64 << 10;
constexpr size_t kShownCharacters = 200;
constexpr int kReady = 200;  // of HTTP's status codes

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

struct Lookup {
  int error;
  AddressList addresses;
};

struct Answer {
  std::string text;  // what came until it said "ready", the server closed, the deadline or the
                     // limit
  bool closed = false;
};

Status NotReady(const std::string& found) { return Status(StatusCode::kUnavailable, found); }
Status NotReady(const char* what, int error) {
  return NotReady(std::string(what) + ": " + std::strerror(error));
}

class Socket {
 public:
  explicit Socket(const addrinfo& address)
      : fd_(socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                   address.ai_protocol)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// Whether one of `events` came before the deadline. An error counts too; the next call reports it.
bool WaitFor(int fd, short events, steady_clock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int found = poll(&entry, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (found > 0) return true;
    if (found == 0 || errno != EINTR) return false;
  }
}

// getaddrinfo has no time limit, so it runs on its own thread, which is abandoned if it is late.
Result<AddressList> Resolve(const HttpUrl& url, steady_clock::time_point deadline) {
  auto promise = std::make_shared<std::promise<Lookup>>();
  std::future<Lookup> future = promise->get_future();
  std::thread([promise, url] {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    addrinfo* list = nullptr;
    const int error = getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &list);
    promise->set_value({error, AddressList(list, &freeaddrinfo)});
  }).detach();
  if (future.wait_until(deadline) != std::future_status::ready)
    return NotReady("its name was not resolved in time");
  Lookup lookup = future.get();
  if (lookup.error != 0) return NotReady(gai_strerror(lookup.error));
  return std::move(lookup.addresses);
}

// The start of `text` on one line.
std::string Printable(std::string_view text) {
  std::string shown(text.substr(0, kShownCharacters));
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return shown;
}

// 0 if `text` does not begin with the status line of HTTP/1.
int StatusOf(std::string_view text) {
  constexpr std::string_view kForm = "HTTP/1.d ddd";
  if (text.size() <= kForm.size() || text.find('\n') == std::string_view::npos) return 0;
  if (std::string_view(" \r\n").find(text[kForm.size()]) == std::string_view::npos) return 0;
  for (size_t i = 0; i < kForm.size(); ++i) {
    if (kForm[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != kForm[i]) return 0;
  }
  return std::stoi(std::string(text.substr(kForm.size() - 3, 3)));
}

Result<Answer> Exchange(const addrinfo& address, const std::string& request,
                        steady_clock::time_point deadline) {
  const Socket socket(address);
  if (socket.fd() < 0) return NotReady("socket", errno);
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return NotReady("connect", errno);
    if (!WaitFor(socket.fd(), POLLOUT, deadline)) return NotReady("no connection in time");
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return NotReady("connect", error);
  }
  for (size_t sent = 0; sent < request.size();) {
    if (!WaitFor(socket.fd(), POLLOUT, deadline))
      return NotReady("the request could not be sent in time");
    const ssize_t count = send(socket.fd(), request.data() + sent, request.size() - sent,
                               MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return NotReady("send", errno);
    sent += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  Answer answer;
  while (answer.text.size() < kMaxAnswerBytes && WaitFor(socket.fd(), POLLIN, deadline)) {
    char part[4096];
    const ssize_t count = recv(socket.fd(), part, sizeof(part), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count < 0 && answer.text.empty()) return NotReady("receive", errno);
    if (count <= 0) return answer.closed = true, answer;
    answer.text.append(part, static_cast<size_t>(count));
    if (StatusOf(answer.text) == kReady) return answer;
  }
  return answer;
}

Status Judge(const Answer& answer) {
  if (answer.text.empty())
    return NotReady(answer.closed ? "closed without an answer" : "no answer in time");
  const int status = StatusOf(answer.text);
  if (status == kReady) return {};
  if (status == 0) return NotReady("the answer is not HTTP: " + Printable(answer.text));
  const size_t head = answer.text.find("\r\n\r\n");
  const std::string body = head == std::string::npos
                               ? ""
                               : " " + Printable(std::string_view(answer.text).substr(head + 4));
  return NotReady("status " + std::to_string(status) + body);
}

Result<Answer> ExchangeOverUnixSocket(const std::string& path, const std::string& request,
                                      steady_clock::time_point deadline) {
  sockaddr_un unix_address{};
  unix_address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(unix_address.sun_path)) return NotReady("connect", ENAMETOOLONG);
  path.copy(unix_address.sun_path, path.size());
  addrinfo address{};
  address.ai_family = AF_UNIX;
  address.ai_socktype = SOCK_STREAM;
  address.ai_addr = reinterpret_cast<sockaddr*>(&unix_address);
  address.ai_addrlen = sizeof(unix_address);
  return Exchange(address, request, deadline);
}

Status Probe(const ServerPlace& place, steady_clock::time_point deadline) {
  const HttpUrl& url = place.url;
  const std::string request = "GET " + url.path + " HTTP/1.1\r\nHost: " + url.Authority() +
                              "\r\nUser-Agent: diffserve-probe\r\nConnection: close\r\n\r\n";
  if (!place.unix_socket.empty()) {
    const Result<Answer> answer = ExchangeOverUnixSocket(place.unix_socket, request, deadline);
    return answer.ok() ? Judge(*answer) : answer.status();
  }
  const Result<AddressList> addresses = Resolve(url, deadline);
  if (!addresses.ok()) return addresses.status();
  Status status;
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    const Result<Answer> answer = Exchange(*address, request, deadline);
    if (answer.ok()) return Judge(*answer);
    status = answer.status();
  }
  return status;
}

}  // namespace

Status RunProbe(const ProbeOptions& options) {
  const Result<ServerPlace> place = ParseServerPlace(options.url);
  if (!place.ok()) return place.status();
  const steady_clock::time_point deadline = steady_clock::now() + kTimeout;
  const Status status = Probe(*place, deadline);
  if (status.ok()) return status;
  std::string limit;
  if (steady_clock::now() >= deadline) limit = " (" + std::to_string(kTimeout.count()) + " s)";
  return Status(status.code(), options.url + " is not ready: " + status.message() + limit);
}

}  // namespace diffserve
