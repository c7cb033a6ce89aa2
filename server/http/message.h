// HTTP requests and replies as values, and HttpExchange: an answer that is not there yet. What
// stands between the sockets (server.h) and the routes (openai/routes.h); neither knows the other.
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

struct HttpHead {
  std::string method;
  std::string path;  // raw, without the query; never decoded
  std::string query;
  int minor_version = 1;
  std::vector<std::pair<std::string, std::string>> fields;  // names in lower case, values trimmed
  bool keep_alive = true;
  bool expects_continue = false;
  bool chunked = false;
  size_t content_length = 0;

  // Empty if absent. The gate has refused requests that repeat a field where that matters.
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

struct HttpRequest {
  HttpHead head;
  std::string body;
  std::string peer;  // the address at the other end of the connection, without port
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> fields;
  std::string body;
  bool close = false;    // the connection ends after it
  bool streams = false;  // the body comes from HttpExchange::Frames; `body` is empty
  // Sent whenever Frames has brought nothing for HttpServerOptions::ping_interval, which is then
  // between two frames; empty: never.
  std::string ping;
};

// An answer in the making. The connection owns it and uses it on its own thread; destroying it
// before its end cancels the work.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // The reply, or nullopt as long as it is not known; the `wake` given with the request is called
  // when it is worth asking again.
  virtual std::optional<HttpReply> Reply() = 0;
  // Appends what there is of the body so far, no more than is made in a short turn; true once it is
  // complete. Asked only when the previous bytes have been written.
  virtual bool Frames(std::string* bytes) = 0;
  // Leaves out what is still to come of a reply that has begun, and ends it with an error event.
  // False if its form has no such event: it then goes on.
  virtual bool EndWithError() { return false; }
  virtual bool EndedWithError() const { return false; }
};

// How a reply that had begun ended without its end.
enum class HttpCut { kErrorEvent, kReset, kCount };

using HttpAnswer = std::variant<HttpReply, std::unique_ptr<HttpExchange>>;

// What the sockets need of the routes.
struct HttpService {
  // Runs on an I/O thread and must not block. `wake` may be called from any thread, also after the
  // exchange is gone.
  std::function<HttpAnswer(HttpRequest request, std::function<void()> wake)> serve;
  // The reply to what the gate refuses. `head` is as much as could be read of the request's.
  std::function<HttpReply(int status, std::string_view reason, const HttpHead& head)> refuse;
  // While true, every connection is closed after its reply.
  std::function<bool()> draining;
  // Told of each reply that was cut; from any I/O thread. May be empty.
  std::function<void(HttpCut how)> on_cut;
};

}  // namespace diffserve
