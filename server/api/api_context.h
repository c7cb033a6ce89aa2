// SPDX-License-Identifier: Apache-2.0
// ApiContext: what the routes of every API share: the frontend, and the steps from a request's body
// to its reply. OnBody makes a route's answer from a body's parser and a function of what it read.
// Thread safety: every method may be called from any I/O thread. A reply that is made on a text
// thread holds a shared pointer to the context, and may end after the server has stopped.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "server/api/door/exchanges.h"
#include "server/api/door/pending_result.h"
#include "server/api/door/route.h"
#include "server/api/exchange.h"
#include "server/api/fields/read_context.h"
#include "server/api/head/api_key.h"
#include "server/api/head/cross_origin.h"
#include "server/api/reply/logprobs_text.h"
#include "server/http/content_coding.h"
#include "server/http/gate.h"
#include "server/observe/health.h"
#include "server/serving/frontend.h"

namespace diffserve {

struct HttpRoutesOptions {
  std::string model_root;      // shown as `root` in /v1/models
  std::string fingerprint;     // system_fingerprint
  std::string tokenizer_info;  // the body of /tokenizer_info; empty: there is no tokenizer
  bool ui = true;              // serve the page; else its paths are unknown
  CrossOrigin cross_origin;    // other origins whose web pages may use the server
  // Serve only Host fields with a loopback name, as protection from web pages that rebind their
  // name to this machine. For servers on a loopback address without API keys.
  bool loopback_hosts_only = false;
  std::string parent_secret;                            // as in FrontDoorOptions
  int retry_after_s = 1;                                // minimum, of 429 and 503
  size_t max_body_bytes = HttpLimits().max_body_bytes;  // after its content coding is decoded
  std::function<std::string()> metrics_text;            // Prometheus text
  // Called once per request that was answered or whose client left first: when the reply's last
  // byte is made, before it is sent. `route` is a path of HttpRoutes::routes() or
  // FrontDoor::kNoRoute; 499 means that the client left before there was a status. Called from any
  // I/O thread.
  std::function<void(std::string_view route, int status)> on_reply;
};

// An answer of the engine that is about to start.
struct NewResponse {
  GenerateRequest request;
  std::unique_ptr<AnswerWriter> writer;
  bool streams = false;
  ErrorBody error_body = OpenAiErrorBody;
};

struct ApiContext : std::enable_shared_from_this<ApiContext> {
  // The references outlive it.
  ApiContext(HttpRoutesOptions options_in, Frontend& frontend_in, const Health& health_in)
      : options(std::move(options_in)), frontend(frontend_in), health(health_in) {}

  ReadContext read_context() const { return {&frontend.options(), frontend.DefaultSampling()}; }
  TokenTexts token_texts() const;
  const std::string& model_name() const { return frontend.options().names.name; }
  // Error: kNotFound, if the name is neither empty nor served.
  Status CheckModel(const std::string& model) const;

  HttpReply Error(const Status& status, const ErrorBody& body = OpenAiErrorBody) const;
  // An error of HTTP, whose status has no StatusCode.
  HttpReply HttpError(int http_status, std::string_view reason, const ErrorBody& body) const;
  // Refuses a generation. During a drain every request gets the drain's error.
  HttpReply Refused(const Status& status, const ErrorBody& body = OpenAiErrorBody) const;

  // A reply that another thread makes. It is logged like one that is there at once.
  HttpAnswer Pending(const RouteCall& call, std::shared_ptr<PendingReply> pending,
                     ErrorBody body = OpenAiErrorBody) const;
  HttpAnswer StartResponse(RouteCall& call, NewResponse response);
  // At its end the exchange is logged and leaves `in_flight`; who starts it adds it there.
  ExchangeHooks HooksOf(const RouteAccount& account, ErrorBody body) const;

  // `start(api, call, parsed)` gives the answer, after the body was decoded and `parse(body,
  // read_context)` has run: at once for a small body, on a text thread for a large one and for one
  // with a content coding.
  template <typename Parsed>
  using Start = std::function<HttpAnswer(ApiContext& api, RouteCall& call, Result<Parsed> parsed)>;
  template <typename Parsed>
  using Parse = std::function<Result<Parsed>(std::string_view body, const ReadContext& context)>;
  template <typename Parsed>
  HttpAnswer ParseThen(RouteCall& call, Parse<Parsed> parse, Start<Parsed> start);
  // The same for any work; `bytes`: the size of its input.
  template <typename Parsed>
  HttpAnswer ReadThen(RouteCall& call, size_t bytes, std::function<Result<Parsed>()> read,
                      Start<Parsed> start);

  const HttpRoutesOptions options;
  Frontend& frontend;
  const Health& health;
  const int64_t created = std::time(nullptr);  // Unix seconds
  const std::shared_ptr<std::atomic<int64_t>> in_flight = std::make_shared<std::atomic<int64_t>>(0);
};

// A body without its content coding, or why it cannot be decoded.
using DecodedBody = std::variant<std::string, HttpRefusal>;
DecodedBody Decoded(ContentCoding coding, std::string body, size_t max_bytes);

template <typename Parsed>
HttpAnswer ApiContext::ParseThen(RouteCall& call, Parse<Parsed> parse, Start<Parsed> start) {
  const ContentCoding coding =  // the front door lets no other in
      ContentCodingOf(call.request.head.Field("content-encoding")).value();
  const auto body = std::make_shared<std::string>(std::move(call.request.body));
  const size_t bytes = coding == ContentCoding::kIdentity
                           ? body->size()
                           : std::max(body->size(), kMaxInlineBodyBytes + 1);
  using Read = std::variant<Result<Parsed>, HttpRefusal>;
  const auto read = [self = shared_from_this(), coding, body, parse = std::move(parse)] {
    const DecodedBody decoded = Decoded(coding, std::move(*body), self->options.max_body_bytes);
    if (const auto* refusal = std::get_if<HttpRefusal>(&decoded))
      return Result<Read>(Read(*refusal));
    return Result<Read>(Read(parse(std::get<std::string>(decoded), self->read_context())));
  };
  const auto answer = [start = std::move(start)](ApiContext& api, RouteCall& read_call,
                                                 Result<Read> made) -> HttpAnswer {
    if (!made.ok()) return start(api, read_call, made.status());
    if (const auto* refusal = std::get_if<HttpRefusal>(&*made))
      return api.HttpError(refusal->status, refusal->reason, read_call.errors);
    return start(api, read_call, std::get<Result<Parsed>>(*std::move(made)));
  };
  return ReadThen<Read>(call, bytes, read, answer);
}

template <typename Parsed>
HttpAnswer ApiContext::ReadThen(RouteCall& call, size_t bytes, std::function<Result<Parsed>()> read,
                                Start<Parsed> start) {
  if (bytes <= kMaxInlineBodyBytes) return start(*this, call, read());
  auto parsed = std::make_shared<PendingResult<Parsed>>(call.wake);
  const Status status = frontend.RunOnTextThread(
      call.account.client, bytes, [parsed, read = std::move(read)](bool run) {
        parsed->Fill(
            run ? read()
                : Result<Parsed>(Status(StatusCode::kUnavailable, "the server is shutting down")));
      });
  if (!status.ok()) return Error(status, call.errors);
  auto later = std::make_shared<RouteCall>(call.Later());
  return std::make_unique<DeferredExchange>(
      bytes,
      [self = shared_from_this(), parsed, later,
       start = std::move(start)]() -> std::optional<HttpAnswer> {
        std::optional<Result<Parsed>> taken = parsed->Take();
        if (!taken) return std::nullopt;
        HttpAnswer answer = start(*self, *later, *std::move(taken));
        if (const auto* reply = std::get_if<HttpReply>(&answer))
          LogReply(later->account, reply->status);
        return answer;
      });
}

// The answer of a route that reads a body first.
template <typename Parsed>
auto OnBody(Result<Parsed> (*parse)(std::string_view body, const ReadContext& context),
            HttpAnswer (*start)(ApiContext& api, RouteCall& call, Result<Parsed> parsed)) {
  return
      [=](ApiContext& api, RouteCall& call) { return api.ParseThen<Parsed>(call, parse, start); };
}

}  // namespace diffserve
