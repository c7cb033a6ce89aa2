// HttpClient: asks a server one thing at a time over HTTP/1.1, a connection each. What the body
// brings is handed on as it comes, so a stream can be followed while it is made.
//
// Thread safety: one thread; a stop may be asked for by any.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "server/http/url.h"

namespace diffserve {

struct HttpClientOptions {
  HttpUrl server;            // its path counts for nothing
  std::string api_key = {};  // empty: none is shown
  std::chrono::seconds connect_timeout{10};
  std::chrono::seconds silence_timeout{600};  // a server that says nothing for so long is given up
  size_t max_error_bytes = 64 << 10;          // of the body of an answer that is not 200
};

struct HttpRequestText {
  const char* method = "GET";
  std::string path;
  std::string body = {};  // JSON; empty: none
};

// An answer that is not 200 has its body here, and `take` sees nothing of it.
struct HttpOutcome {
  int status = 0;
  std::string error_body;
};

class HttpClient {
 public:
  // False: no more of it is wanted, and the answer counts as whole.
  using TakeBody = std::function<bool(std::string_view piece)>;

  explicit HttpClient(HttpClientOptions options) : options_(std::move(options)) {}

  // Error: kUnavailable, with what the system says, if the server cannot be reached or breaks off;
  // kCancelled soon after `stop` is asked for.
  Result<HttpOutcome> Ask(const HttpRequestText& request, const TakeBody& take,
                          const std::stop_token& stop) const;

 private:
  const HttpClientOptions options_;
};

}  // namespace diffserve
