// SPDX-License-Identifier: Apache-2.0
// HttpFetcher: sends one request at a time to a server over HTTP/1.1, each on its own connection.
// The body is passed on as it arrives, so a stream can be followed.
//
// Thread safety: one thread; a stop may be requested by any thread.
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

struct HttpFetcherOptions {
  HttpUrl server;            // its path is ignored
  std::string api_key = {};  // empty: none is sent
  std::chrono::seconds connect_timeout{10};
  std::chrono::seconds silence_timeout{600};  // without data, then the request fails
  size_t max_error_bytes = 64 << 10;          // of the body of an answer other than 200
};

struct HttpRequestText {
  const char* method = "GET";
  std::string path;
  std::string body = {};  // JSON; empty: none
};

// The body of an answer other than 200; `take` does not get it.
struct HttpOutcome {
  int status = 0;
  std::string error_body;
};

class HttpFetcher {
 public:
  // Returns false to stop reading; the answer then counts as complete.
  using TakeBody = std::function<bool(std::string_view piece)>;

  explicit HttpFetcher(HttpFetcherOptions options) : options_(std::move(options)) {}

  // Error: kUnavailable with the system's message, if the server cannot be reached or closes early;
  // kCancelled soon after a stop is requested.
  Result<HttpOutcome> Ask(const HttpRequestText& request, const TakeBody& take,
                          const std::stop_token& stop) const;

 private:
  const HttpFetcherOptions options_;
};

}  // namespace diffserve
