// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/server/http_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace diffserve::testing {

HttpClient::HttpClient(int port, int receive_buffer_bytes, const char* from) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer_bytes > 0)
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  const int yes = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, from, &address.sin_addr);
  const bool is_bound = bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connected_ = is_bound &&
               connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

bool HttpClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool HttpClient::SendPost(const std::string& path, const std::string& body,
                          const std::string& fields) {
  return Send("POST " + path +
              " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body);
}

bool HttpClient::SendGet(const std::string& path, const std::string& fields) {
  return Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n");
}

ClientReply HttpClient::Post(const std::string& path, const std::string& body,
                             const std::string& fields) {
  EXPECT_TRUE(SendPost(path, body, fields));
  return ReadReply();
}

ClientReply HttpClient::Get(const std::string& path, const std::string& fields) {
  EXPECT_TRUE(SendGet(path, fields));
  return ReadReply();
}

bool HttpClient::ReadHead(ClientReply* reply) {
  size_t end;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!ReadSome()) return false;
  }
  const std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  reply->status = std::atoi(head.substr(9, 3).c_str());
  for (size_t begin = head.find("\r\n") + 2; begin < head.size();) {
    const size_t line_end = head.find("\r\n", begin);
    const size_t colon = head.find(':', begin);
    std::string name = head.substr(begin, colon - begin);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    reply->fields[name] = head.substr(colon + 2, line_end - colon - 2);
    begin = line_end + 2;
  }
  return true;
}

ClientReply HttpClient::ReadReply(bool head_only) {
  ClientReply reply;
  do {
    reply = {};
    if (!ReadHead(&reply)) return {};
  } while (reply.status == 100);
  if (head_only || reply.status == 204) return reply;
  if (reply.fields.count("transfer-encoding") > 0) {
    std::string piece;
    while (ReadChunk(&piece)) reply.body += piece;
    return reply;
  }
  if (reply.fields.count("content-length") == 0) {
    while (ReadSome()) {
    }
    reply.body = std::exchange(buffer_, {});
    return reply;
  }
  const size_t size = std::strtoull(reply.fields["content-length"].c_str(), nullptr, 10);
  while (buffer_.size() < size && ReadSome()) {
  }
  EXPECT_GE(buffer_.size(), size) << "the connection ended within a body";
  reply.body = buffer_.substr(0, size);
  buffer_.erase(0, size);
  return reply;
}

bool HttpClient::ReadChunk(std::string* piece) {
  size_t line_end;
  while ((line_end = buffer_.find("\r\n")) == std::string::npos) {
    if (!ReadSome()) {
      ADD_FAILURE() << "the connection ended within a chunked body";
      return false;
    }
  }
  const size_t size = std::strtoull(buffer_.c_str(), nullptr, 16);
  while (buffer_.size() < line_end + 2 + size + 2) {
    if (!ReadSome()) {
      ADD_FAILURE() << "the connection ended within a chunk";
      return false;
    }
  }
  EXPECT_EQ(buffer_.substr(line_end + 2 + size, 2), "\r\n");
  *piece = buffer_.substr(line_end + 2, size);
  buffer_.erase(0, line_end + 2 + size + 2);
  return size > 0;
}

bool HttpClient::ReadSome(int timeout_ms) {
  pollfd waiting{fd_, POLLIN, 0};
  if (poll(&waiting, 1, timeout_ms) != 1) return false;
  char bytes[65536];
  const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
  was_reset_ = n < 0 && errno == ECONNRESET;
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

bool HttpClient::AtEnd(int timeout_ms) {
  pollfd waiting{fd_, POLLIN, 0};
  if (!buffer_.empty() || poll(&waiting, 1, timeout_ms) != 1) return false;
  char byte;
  return recv(fd_, &byte, 1, MSG_PEEK) <= 0;
}

bool HttpClient::IsDrained() const {
  sockaddr_in own{}, peer{};
  socklen_t size = sizeof(own);
  getsockname(fd_, reinterpret_cast<sockaddr*>(&own), &size);
  getpeername(fd_, reinterpret_cast<sockaddr*>(&peer), &size);
  const unsigned ports[] = {ntohs(own.sin_port), ntohs(peer.sin_port)};
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      unsigned local = 0, remote = 0, sending = 0, receiving = 0;
      if (std::sscanf(line.c_str(), " %*d: %*[^:]:%x %*[^:]:%x %*x %x:%x", &local, &remote,
                      &sending, &receiving) != 4)
        continue;
      const bool ours = (local == ports[0] && remote == ports[1]) ||
                        (local == ports[1] && remote == ports[0]);
      if (ours && (sending > 0 || receiving > 0)) return false;
    }
  }
  return true;
}

bool HttpClient::ReadToEnd() {
  while (ReadSome()) buffer_.clear();
  return AtEnd(0);
}

void HttpClient::ShutdownWrite() { shutdown(fd_, SHUT_WR); }

void HttpClient::Reset() {
  const linger hard{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  Close();
}

void HttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::vector<std::string> SseData(const std::string& body) {
  std::vector<std::string> data;
  size_t begin = 0;
  while (begin < body.size()) {
    const size_t end = body.find("\n\n", begin);
    EXPECT_NE(end, std::string::npos) << "an event without its empty line";
    EXPECT_EQ(body.compare(begin, 6, "data: "), 0) << body.substr(begin, 40);
    if (end == std::string::npos) break;
    data.push_back(body.substr(begin + 6, end - begin - 6));
    EXPECT_EQ(data.back().find('\n'), std::string::npos);
    begin = end + 2;
  }
  return data;
}

ClientReply Once(int port, const std::string& method, const std::string& target,
                 const std::string& fields, const std::string& host) {
  HttpClient client(port);
  client.Send(method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 2\r\n" +
              fields + "\r\n{}");
  return client.ReadReply(/*head_only=*/method == "HEAD");
}

}  // namespace diffserve::testing
