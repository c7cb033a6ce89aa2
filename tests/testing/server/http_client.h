// SPDX-License-Identifier: Apache-2.0
// A blocking HTTP client over a raw socket, for tests: it sends any bytes and reads replies
// strictly. Every wait is bounded.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace diffserve::testing {

struct ClientReply {
  int status = 0;                             // 0: the connection ended without a reply
  std::map<std::string, std::string> fields;  // names in lower case
  std::string body;                           // chunks joined
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

class HttpClient {
 public:
  // `from`: the address on loopback that the server sees.
  explicit HttpClient(int port, int receive_buffer_bytes = 0, const char* from = "127.0.0.1");
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool connected() const { return connected_; }

  bool Send(std::string_view bytes);

  // A whole request with a JSON body.
  bool SendPost(const std::string& path, const std::string& body, const std::string& fields = {});
  bool SendGet(const std::string& path, const std::string& fields = {});

  ClientReply Post(const std::string& path, const std::string& body,
                   const std::string& fields = {});
  ClientReply Get(const std::string& path, const std::string& fields = {});

  // Head only; the body follows by ReadReply's means or ReadSome.
  bool ReadHead(ClientReply* reply);
  ClientReply ReadReply(bool head_only = false);

  // One chunk of a chunked body; false after the last.
  bool ReadChunk(std::string* piece);

  // False at the end of the connection, or if nothing came in time.
  bool ReadSome(int timeout_ms = 60000);
  // The peer has closed the connection and nothing is left to read.
  bool AtEnd(int timeout_ms = 60000);
  // No byte of this connection waits in the system: the server has read all that was sent.
  bool IsDrained() const;
  // Drops what comes until the peer has ended the connection; false if it does not in time.
  bool ReadToEnd();
  // The last ReadSome found that the peer had reset the connection.
  bool WasReset() const { return was_reset_; }
  const std::string& buffered() const { return buffer_; }

  void ShutdownWrite();
  // Ends with RST instead of FIN.
  void Reset();
  void Close();

 private:
  int fd_ = -1;
  bool connected_ = false;
  bool was_reset_ = false;
  std::string buffer_;
};

// The data of each server-sent event, in order; the framing is checked.
std::vector<std::string> SseData(const std::string& body);

// One request with the body {} on a connection of its own.
ClientReply Once(int port, const std::string& method, const std::string& target,
                 const std::string& fields = {}, const std::string& host = "localhost");

}  // namespace diffserve::testing
