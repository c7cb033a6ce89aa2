// OpenAiRoutes::Impl: what all routes of the HTTP port share. A route is a member that answers a
// RouteCall and a line of Table(); the members of a family of routes are in a file of their own
// (generate_routes.cc, ...). Private to those files.
// Thread safety: as OpenAiRoutes; a reply that is made on a text thread holds a shared pointer to
// it.
#pragma once

#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/log.h"
#include "server/load_report.h"
#include "server/openai/attention_request.h"
#include "server/openai/exchange.h"
#include "server/openai/request.h"
#include "server/openai/response.h"
#include "server/openai/routes.h"
#include "server/options.h"
#include "server/trace_context.h"
#include "server/ui/files.h"

namespace diffserve {

inline constexpr size_t kMaxInlineBodyBytes = 64 << 10;  // parsed in well under a millisecond

// What is told of a request beside its answer.
struct RouteAccount {
  std::string request_id;
  std::string client;  // ClientName
  std::optional<TraceContext> trace;
  std::string route;  // as in the table, for the log and the counters
  std::chrono::steady_clock::time_point begin;
  LoadFormat load_format = LoadFormat::kNone;  // what the reply says of the server's load
};

struct RouteCall {
  HttpRequest request;
  RouteAccount account;
  std::function<void()> wake;
};

// Shared with replies under way on text threads, which may end after the server has stopped.
struct OpenAiRoutes::Impl : std::enable_shared_from_this<OpenAiRoutes::Impl> {
  Impl(OpenAiRoutesOptions options_in, Frontend& frontend_in, const Health& health_in,
       const ApiKeys& keys_in)
      : options(std::move(options_in)), frontend(frontend_in), health(health_in), keys(keys_in) {}

  using Call = RouteCall;
  using Answer = HttpAnswer (Impl::*)(Call& call);
  struct Route {
    RouteInfo info;
    Answer answer;
  };
  static std::span<const Route> Table();

  HttpAnswer Completions(Call& call) {
    return ParseThen(call, ParseCompletionRequest, &Impl::Generate);
  }
  HttpAnswer ChatCompletions(Call& call) {
    return ParseThen(call, ParseChatRequest, &Impl::Generate);
  }
  HttpAnswer Attention(Call& call) {
    return ParseThen(call, ParseAttentionRequest, &Impl::AttentionParsed);
  }
  HttpAnswer Tokenize(Call& call) {
    return ParseThen(call, ParseTokenizeRequest, &Impl::TokenizeParsed);
  }
  HttpAnswer Detokenize(Call& call) {
    return ParseThen(call, ParseDetokenizeRequest, &Impl::DetokenizeParsed);
  }
  HttpAnswer Models(Call&) { return Json(ModelListBody(Card())); }
  HttpAnswer Model(Call& call);
  HttpAnswer Version(Call&) { return Json(VersionBody(BuildVersion(), BuildCommit())); }
  HttpAnswer Load(Call&) { return Json(LoadBody(in_flight->load())); }
  HttpAnswer Live(Call&) { return Json("{\"status\":\"ok\"}"); }
  HttpAnswer Ready(Call& call);
  HttpAnswer Metrics(Call& call);
  HttpAnswer Page(Call& call) {
    return UiReply(call.request.head.path)
        .value_or(Error(Status(StatusCode::kNotFound, "the page has no such file")));
  }

  HttpAnswer Dispatch(Call& call);
  void Count(std::string_view route, int status) const { options.on_reply(route, status); }
  void AddFields(const RouteAccount& account, HttpReply& reply) const;
  void End(const RouteAccount& account, int status) const;
  // Small bodies are parsed at once, large ones on a text thread.
  template <typename Parsed>
  HttpAnswer ParseThen(Call& call, Result<Parsed> (*parse)(std::string_view, const OpenAiContext&),
                       HttpAnswer (Impl::*start)(Call&, Result<Parsed>));
  HttpAnswer Generate(Call& call, Result<OpenAiRequest> parsed);
  HttpAnswer AttentionParsed(Call& call, Result<OpenAiAttentionRequest> parsed);
  HttpAnswer TokenizeParsed(Call& call, Result<TokenizeRequest> parsed);
  HttpAnswer DetokenizeParsed(Call& call, Result<DetokenizeRequest> parsed);
  Status CheckModel(const std::string& model) const;
  // An error in the form of the route's API.
  using ErrorReply = std::function<HttpReply(const Status& status)>;
  ErrorReply OpenAiErrors() {
    return [self = shared_from_this()](const Status& error) { return self->Error(error); };
  }
  HttpReply RefuseDraining(const ErrorReply& error_reply) const;
  // During a drain that is what a request hears, whatever else is wrong with it.
  HttpAnswer Refused(const Status& status, const ErrorReply& error_reply) const;
  struct NewResponse {
    std::unique_ptr<ResponseEncoder> encoder;
    bool streams = false;
    ErrorReply error_reply;
  };
  // Fills in who asks, and begins to generate.
  HttpAnswer StartResponse(RouteCall& call, GenerateRequest request, NewResponse response);
  TokenBytes TokenBytesOf() const {
    return [this](int32_t id) { return frontend.tokenizer().TokenBytes(id); };
  }
  static void LogEnd(const RouteAccount& account, const ExchangeOutcome& outcome);
  HttpReply Error(const Status& status) const;
  HttpAnswer Pending(std::shared_ptr<PendingReplyExchange::Place> place) const {
    return std::make_unique<PendingReplyExchange>(
        std::move(place),
        [self = shared_from_this()](const Status& error) { return self->Error(error); });
  }
  HttpReply ErrorWith(int http_status, std::string_view reason) const;
  static HttpReply Json(std::string body);
  ModelCard Card() const;
  OpenAiContext Context() const {
    return {&frontend.options(), frontend.DefaultSampling(), options.strict};
  }
  OpenAiIdentity Identity(const Call& call, bool chat) const;

  OpenAiRoutesOptions options;
  Frontend& frontend;
  const Health& health;
  const ApiKeys& keys;
  const int64_t created = std::time(nullptr);
  const std::shared_ptr<std::atomic<int64_t>> in_flight = std::make_shared<std::atomic<int64_t>>(0);
};

template <typename Parsed>
HttpAnswer OpenAiRoutes::Impl::ParseThen(Call& call,
                                         Result<Parsed> (*parse)(std::string_view,
                                                                 const OpenAiContext&),
                                         HttpAnswer (Impl::*start)(Call&, Result<Parsed>)) {
  const size_t bytes = call.request.body.size();
  if (bytes <= kMaxInlineBodyBytes)
    return (this->*start)(call, parse(call.request.body, Context()));
  struct Place {
    std::mutex mutex;
    std::optional<Result<Parsed>> parsed;
  };
  auto place = std::make_shared<Place>();
  auto body = std::make_shared<std::string>(std::move(call.request.body));
  const Status status = frontend.RunOnTextThread(
      call.account.client, bytes,
      [self = shared_from_this(), place, body, parse, wake = call.wake](bool run) {
        Result<Parsed> parsed(OutOfMemoryStatus());
        try {
          parsed = run ? parse(*body, self->Context())
                       : Result<Parsed>(
                             Status(StatusCode::kUnavailable, "the server is shutting down"));
        } catch (const std::bad_alloc&) {
          Log(LogLevel::kError, "text_work_failed");
        }
        {
          std::lock_guard lock(place->mutex);
          place->parsed = std::move(parsed);
        }
        wake();
      });
  if (!status.ok()) return Error(status);
  auto later = std::make_shared<Call>(Call{{}, call.account, call.wake});
  return std::make_unique<DeferredExchange>(
      [self = shared_from_this(), place, later, start]() -> std::optional<HttpAnswer> {
        std::lock_guard lock(place->mutex);
        if (!place->parsed) return std::nullopt;
        return (*self.*start)(*later, *std::exchange(place->parsed, std::nullopt));
      });
}

}  // namespace diffserve
