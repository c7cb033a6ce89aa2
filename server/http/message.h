// SPDX-License-Identifier: Apache-2.0
// HTTP requests and replies as values, and HttpExchange: an answer that is not ready yet. The
// interface between the sockets (server.h) and the routes (server/api/routes.h), which do not know
// each other.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace diffserve {

using HttpFields = std::vector<std::pair<std::string, std::string>>;  // names and values

struct HttpHead {
  std::string method;
  std::string path;  // raw, without the query; never decoded; "*" of OPTIONS: the whole server
  std::string query;
  std::string host;  // of an absolute target, else of the Host field; empty: the client named none
  int minor_version = 1;
  HttpFields fields;  // names in lower case, values trimmed
  bool keep_alive = true;
  bool expects_continue = false;
  bool chunked = false;
  size_t content_length = 0;

  // Empty if absent. The gate refuses requests that repeat a field where that matters.
  std::string_view Field(std::string_view lower_case_name) const {
    for (const auto& [name, value] : fields) {
      if (name == lower_case_name) return value;
    }
    return {};
  }
  bool HasField(std::string_view lower_case_name) const {
    for (const auto& [name, value] : fields) {
      if (name == lower_case_name) return true;
    }
    return false;
  }
};

class UpstreamConnections;  // server/http/client/upstream_connections.h

struct HttpRequest {
  HttpHead head;
  std::string body;
  std::string peer;  // the peer's address, without port
  // For passing the request on to another server: those of the event loop that carries it. nullptr:
  // it came by no connection.
  UpstreamConnections* upstream = nullptr;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  HttpFields fields;
  std::string body;
  bool close = false;    // the connection ends after this reply
  bool streams = false;  // the body comes from HttpExchange::Frames; `body` is empty
  // Sent between two frames, after HttpServerOptions::ping_interval without bytes from Frames;
  // empty: never.
  std::string ping;
};

// An answer that is being generated. The connection owns it and uses it on its own thread.
// Destroying it before its end cancels the work.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // The reply, or nullopt if it is not ready. The request's `wake` is called when it may be ready.
  virtual std::optional<HttpReply> Reply() = 0;
  // Appends the next bytes of the body, at most one short turn's worth. True when the body is
  // complete. Called only when the previous bytes have been written.
  virtual bool Frames(std::string* bytes) = 0;
  // Drops the rest of a started reply and ends it with an error event. False if its format has no
  // such event; the reply then continues.
  virtual bool EndWithError() { return false; }
  virtual bool EndedWithError() const { return false; }
  // Bytes of its request that it still keeps, for the limit of all connections.
  virtual size_t HeldBytes() const { return 0; }
  // True if the rest of a started body cannot be made. Frames has no more bytes then, and the
  // connection is reset.
  virtual bool IsBroken() const { return false; }
};

// How a started reply ended early.
enum class HttpCut { kErrorEvent, kReset, kCount };

using HttpAnswer = std::variant<HttpReply, std::unique_ptr<HttpExchange>>;

// What the sockets call in the routes.
struct HttpService {
  // Runs on an I/O thread and must not block. `wake` may be called from any thread, also after the
  // exchange is destroyed.
  std::function<HttpAnswer(HttpRequest request, std::function<void()> wake)> serve;
  // Who shares one part of the limits. May be empty: the peer's address.
  std::function<std::string(const HttpHead& head, const std::string& peer)> client;
  // The reply to a request that the gate refuses. `head`: the readable part of its head.
  std::function<HttpReply(int status, std::string_view reason, const HttpHead& head)> refuse;
  // While true, every connection is closed after its reply.
  std::function<bool()> draining;
  // Called for each reply that was cut, from any I/O thread. May be empty.
  std::function<void(HttpCut how)> on_cut;
};

}  // namespace diffserve
