#include "server/openai/routes.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <iterator>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "kernels/base/log.h"
#include "server/client_identity.h"
#include "server/http/gate.h"
#include "server/http/url.h"
#include "server/load_report.h"
#include "server/openai/attention_reply.h"
#include "server/openai/attention_request.h"
#include "server/openai/exchange.h"
#include "server/openai/head_fields.h"
#include "server/openai/request.h"
#include "server/openai/response.h"
#include "server/options.h"
#include "server/request_checks.h"
#include "server/status_codes.h"
#include "server/trace_context.h"
#include "server/ui/files.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxInlineBodyBytes = 64 << 10;  // parsed in well under a millisecond
constexpr std::string_view kModelPrefix = "/v1/models/";

// What is told of a request beside its answer.
struct Account {
  std::string request_id;
  std::string client;  // ClientName
  std::optional<TraceContext> trace;
  std::string route;  // as in the table, for the log and the counters
  Clock::time_point begin;
  LoadFormat load_format = LoadFormat::kNone;  // what the reply says of the server's load
};

struct Call {
  HttpRequest request;
  Account account;
  std::function<void()> wake;
};

}  // namespace

// Shared with replies under way on text threads, which may end after the server has stopped.
struct OpenAiRoutes::Impl : std::enable_shared_from_this<OpenAiRoutes::Impl> {
  Impl(OpenAiRoutesOptions options_in, Frontend& frontend_in, const Health& health_in,
       const ApiKeys& keys_in)
      : options(std::move(options_in)), frontend(frontend_in), health(health_in), keys(keys_in) {}

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
  void AddFields(const Account& account, HttpReply& reply) const;
  void End(const Account& account, int status) const;
  // Small bodies are parsed at once, large ones on a text thread.
  template <typename Parsed>
  HttpAnswer ParseThen(Call& call, Result<Parsed> (*parse)(std::string_view, const OpenAiContext&),
                       HttpAnswer (Impl::*start)(Call&, Result<Parsed>));
  HttpAnswer Generate(Call& call, Result<OpenAiRequest> parsed);
  HttpAnswer AttentionParsed(Call& call, Result<OpenAiAttentionRequest> parsed);
  HttpAnswer TokenizeParsed(Call& call, Result<TokenizeRequest> parsed);
  HttpAnswer DetokenizeParsed(Call& call, Result<DetokenizeRequest> parsed);
  Status CheckModel(const std::string& model) const;
  HttpReply RefuseDraining() const;
  static void LogEnd(const Account& account, const ExchangeOutcome& outcome);
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

std::span<const OpenAiRoutes::Impl::Route> OpenAiRoutes::Impl::Table() {
  static constexpr Route kRoutes[] = {
      {{"POST", "/v1/completions"}, &Impl::Completions},
      {{"POST", "/v1/chat/completions"}, &Impl::ChatCompletions},
      {{"POST", "/v1/attention"}, &Impl::Attention},
      {{"POST", "/tokenize"}, &Impl::Tokenize},
      {{"POST", "/detokenize"}, &Impl::Detokenize},
      {{"GET", "/v1/models"}, &Impl::Models},
      {{"GET", kModelPrefix}, &Impl::Model},
      {{"GET", "/version"}, &Impl::Version},
      {{"GET", "/load"}, &Impl::Load},
      {{"GET", "/metrics"}, &Impl::Metrics},
      {{"GET", "/livez", false}, &Impl::Live},
      {{"GET", "/readyz", false}, &Impl::Ready},
      {{"GET", "/health", false}, &Impl::Ready},
      {{"GET", "/", false}, &Impl::Page},
      {{"GET", "/ui/", false}, &Impl::Page},
  };
  return kRoutes;
}

HttpReply OpenAiRoutes::Impl::Json(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

HttpReply OpenAiRoutes::Impl::Error(const Status& status) const {
  HttpReply reply = Json(OpenAiErrorBody(status));
  reply.status = WireStatusOf(status.code()).http;
  const int retry_after_s = std::max(options.retry_after_s, status.retry_after_s());
  if (reply.status == 429 || reply.status == 503)
    reply.fields.emplace_back("Retry-After", std::to_string(retry_after_s));
  if (reply.status == 401) reply.fields.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

// For what only HTTP knows: its statuses have no code of ours.
HttpReply OpenAiRoutes::Impl::ErrorWith(int http_status, std::string_view reason) const {
  const StatusCode code = http_status == 503   ? StatusCode::kUnavailable
                          : http_status == 500 ? StatusCode::kInternal
                                               : StatusCode::kInvalidArgument;
  HttpReply reply = Error(Status(code, std::string(reason)));
  reply.status = http_status;
  return reply;
}

ModelCard OpenAiRoutes::Impl::Card() const {
  return {frontend.options().served_model_name, options.model_root,
          frontend.engine().options().max_model_len, created};
}

Status OpenAiRoutes::Impl::CheckModel(const std::string& model) const {
  if (model.empty() || model == frontend.options().served_model_name) return {};
  return Status(StatusCode::kNotFound,
                "the model '" + model.substr(0, kMaxRequestIdBytes) + "' is not served here",
                "model");
}

OpenAiIdentity OpenAiRoutes::Impl::Identity(const Call& call, bool chat) const {
  return {(chat ? "chatcmpl-" : "cmpl-") + call.account.request_id,
          frontend.options().served_model_name, options.fingerprint, std::time(nullptr)};
}

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

// What new work for the engine is told during a drain.
HttpReply OpenAiRoutes::Impl::RefuseDraining() const {
  frontend.engine().CountRefusal(RefusalReason::kDraining);
  HttpReply reply = Error(Status(StatusCode::kUnavailable, "the server is draining"));
  reply.close = true;
  return reply;
}

void OpenAiRoutes::Impl::LogEnd(const Account& account, const ExchangeOutcome& outcome) {
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - account.begin).count();
  Log(LogLevel::kInfo, "http_request",
      {{"route", account.route},
       {"status", std::to_string(outcome.http_status)},
       {"end", outcome.status.ok() ? "ok" : WireStatusOf(outcome.status.code()).openai_type},
       {"completion_tokens", std::to_string(outcome.completion_tokens)},
       {"ms", std::to_string(ms)},
       {"request_id", account.request_id}});
}

HttpAnswer OpenAiRoutes::Impl::AttentionParsed(Call& call, Result<OpenAiAttentionRequest> parsed) {
  if (health.draining()) return RefuseDraining();
  if (!parsed.ok()) return Error(parsed.status());
  parsed->attention.request_id = call.account.request_id;
  parsed->attention.client = call.account.client;
  const auto place = AttentionExchange::NewPlace(std::move(call.wake));
  Result<std::shared_ptr<AttentionCall>> started = AttentionCall::Start(
      frontend, std::move(parsed->attention), [place](Result<SharedAttentionAnswer> answer) {
        AttentionExchange::Fill(*place, std::move(answer));
      });
  if (!started.ok()) return Error(started.status());
  AttentionExchange::Hooks hooks;
  hooks.error_reply = [self = shared_from_this()](const Status& error) {
    return self->Error(error);
  };
  hooks.on_end = [in_flight = in_flight, account = call.account](const ExchangeOutcome& outcome) {
    --*in_flight;
    LogEnd(account, outcome);
  };
  AttentionText::Options options = {"attn-" + call.account.request_id,
                                    frontend.options().served_model_name, std::time(nullptr),
                                    parsed->float16};
  auto exchange = std::make_unique<AttentionExchange>(std::move(started).value(), place,
                                                      std::move(options), std::move(hooks));
  ++*in_flight;  // until on_end
  return exchange;
}

HttpAnswer OpenAiRoutes::Impl::Generate(Call& call, Result<OpenAiRequest> parsed) {
  if (health.draining()) return RefuseDraining();
  if (!parsed.ok()) return Error(parsed.status());
  parsed->generate.request_id = call.account.request_id;
  parsed->generate.client = call.account.client;
  OpenAiResponse response(*parsed, Identity(call, parsed->chat),
                          [this](int32_t id) { return frontend.tokenizer().TokenBytes(id); });
  const bool streams = parsed->stream;
  auto wake_due = std::make_shared<std::atomic<bool>>(false);
  auto stream = std::make_shared<ResponseStream>(
      frontend.options().max_stream_bytes,
      GenerateExchange::NotifyOf(wake_due, std::move(call.wake)));
  GenerateExchange::Hooks hooks;
  hooks.error_reply = [self = shared_from_this()](const Status& error) {
    return self->Error(error);
  };
  hooks.on_end = [in_flight = in_flight, account = call.account](const ExchangeOutcome& outcome) {
    --*in_flight;
    LogEnd(account, outcome);
  };
  // Made before the response is opened: nothing that could fail comes after.
  auto exchange = std::make_unique<GenerateExchange>(
      frontend, stream, std::move(wake_due), std::move(response), streams, std::move(hooks));
  const Result<ResponseId> id = frontend.Generate(std::move(parsed->generate), std::move(stream));
  if (!id.ok()) return Error(id.status());
  ++*in_flight;
  exchange->Begin(*id);
  return exchange;
}

HttpAnswer OpenAiRoutes::Impl::TokenizeParsed(Call& call, Result<TokenizeRequest> parsed) {
  if (!parsed.ok()) return Error(parsed.status());
  if (const Status status = CheckModel(parsed->model); !status.ok()) return Error(status);
  auto place = PendingReplyExchange::NewPlace(std::move(call.wake));
  const bool with_texts = parsed->return_token_strs;
  const int max_model_len = frontend.engine().options().max_model_len;
  const Status status = frontend.Tokenize(
      call.account.client, std::move(parsed->prompt), parsed->add_special_tokens,
      [self = shared_from_this(), place, with_texts,
       max_model_len](Result<std::vector<int32_t>> ids) {
        if (!ids.ok()) return PendingReplyExchange::Fill(*place, ids.status());
        std::vector<std::string> texts;
        if (with_texts) {
          for (const int32_t id : *ids) texts.push_back(self->frontend.tokenizer().TokenBytes(id));
        }
        PendingReplyExchange::Fill(
            *place, Json(TokenizeBody(*ids, max_model_len, with_texts ? &texts : nullptr)));
      });
  if (!status.ok()) return Error(status);
  return Pending(std::move(place));
}

HttpAnswer OpenAiRoutes::Impl::DetokenizeParsed(Call& call, Result<DetokenizeRequest> parsed) {
  if (!parsed.ok()) return Error(parsed.status());
  if (const Status status = CheckModel(parsed->model); !status.ok()) return Error(status);
  auto place = PendingReplyExchange::NewPlace(std::move(call.wake));
  const Status status = frontend.Detokenize(
      call.account.client, std::move(parsed->tokens), [place](Result<std::string> text) {
        PendingReplyExchange::Fill(
            *place, text.ok() ? Json(DetokenizeBody(*text)) : Result<HttpReply>(text.status()));
      });
  if (!status.ok()) return Error(status);
  return Pending(std::move(place));
}

HttpAnswer OpenAiRoutes::Impl::Model(Call& call) {
  const std::string name = PercentDecoded(
      std::string_view(call.request.head.path).substr(kModelPrefix.size()));
  if (name != frontend.options().served_model_name) {
    return Error(Status(StatusCode::kNotFound, "this model is not served here", "model"));
  }
  return Json(ModelBody(Card()));
}

HttpAnswer OpenAiRoutes::Impl::Ready(Call&) {
  const Status status = health.Ready();
  return status.ok() ? Json("{\"status\":\"ok\"}") : Error(status);
}

HttpAnswer OpenAiRoutes::Impl::Metrics(Call&) {
  HttpReply reply = Json(options.metrics_text());
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return reply;
}

HttpAnswer OpenAiRoutes::Impl::Dispatch(Call& call) {
  const HttpHead& head = call.request.head;
  const auto matches = [this, &head](const Route& route) {
    return (options.ui || route.answer != &Impl::Page) && IsPathOf(head.path, route.info.path);
  };
  const auto routes = Table();
  const auto found = std::find_if(routes.begin(), routes.end(), matches);
  if (found != routes.end()) call.account.route = found->info.path;
  if (options.loopback_hosts_only && !IsLoopbackHost(head.Field("host"))) {
    return ErrorWith(421,
                     "only loopback host names are served; use 127.0.0.1 or localhost, or start "
                     "the server with API keys");
  }
  call.account.client = ClientName(keys, call.request);
  const bool authorised = !keys.required() || !call.account.client.empty();
  if ((found == routes.end() || found->info.needs_key) && !authorised) {
    return Error(Status(StatusCode::kUnauthenticated,
                        "a valid API key is needed, as Authorization: Bearer KEY or X-Api-Key"));
  }
  if (found == routes.end()) return Error(Status(StatusCode::kNotFound, "there is no such path"));
  if (found->info.needs_key) call.account.load_format = HttpLoadFormat(head);
  if (head.method != found->info.method) {
    HttpReply reply = ErrorWith(405, "this path takes another method");
    reply.fields.emplace_back("Allow", std::string(found->info.method));
    return reply;
  }
  if (head.method == "POST" && head.HasField("content-type") &&
      !IsJsonType(head.Field("content-type"))) {
    return ErrorWith(415, "Content-Type must be application/json");
  }
  return (this->*found->answer)(call);
}

void OpenAiRoutes::Impl::AddFields(const Account& account, HttpReply& reply) const {
  reply.fields.emplace_back("X-Request-Id", account.request_id);
  if (account.trace)
    std::ranges::move(TraceFields(*account.trace), std::back_inserter(reply.fields));
  if (account.load_format != LoadFormat::kNone) {
    reply.fields.emplace_back(kLoadField,
                              LoadReport(frontend.engine().Snapshot(), account.load_format));
  }
}

void OpenAiRoutes::Impl::End(const Account& account, int status) const {
  if (account.trace)
    LogTraced(*account.trace, account.route, status, account.request_id, account.begin);
  Count(account.route, status);
}

OpenAiRoutes::OpenAiRoutes(OpenAiRoutesOptions options, Frontend& frontend, const Health& health,
                           const ApiKeys& keys)
    : impl_(std::make_shared<Impl>(std::move(options), frontend, health, keys)) {}

OpenAiRoutes::~OpenAiRoutes() = default;

HttpAnswer OpenAiRoutes::Serve(HttpRequest request, std::function<void()> wake) {
  Call call{std::move(request), {}, std::move(wake)};
  const HttpHead& head = call.request.head;
  call.account = {RequestIdOf(head.Field("x-request-id")),
                  {},
                  TraceOf(head.fields),
                  std::string(kNoRoute),
                  Clock::now()};
  HttpAnswer answer = impl_->Dispatch(call);
  if (auto* exchange = std::get_if<std::unique_ptr<HttpExchange>>(&answer)) {
    const auto account = std::make_shared<const Account>(std::move(call.account));
    return std::make_unique<AccountedExchange>(
        std::move(*exchange),
        [impl = impl_, account](HttpReply& reply) { impl->AddFields(*account, reply); },
        [impl = impl_, account](int status) { impl->End(*account, status); });
  }
  HttpReply& reply = std::get<HttpReply>(answer);
  impl_->AddFields(call.account, reply);
  Log(reply.status < 400 ? LogLevel::kDebug : LogLevel::kInfo, "http_request",
      {{"route", call.account.route},
       {"status", std::to_string(reply.status)},
       {"request_id", call.account.request_id}});
  impl_->End(call.account, reply.status);
  return answer;
}

HttpReply OpenAiRoutes::Refuse(int status, std::string_view reason) const {
  Log(LogLevel::kInfo, "http_refused",
      {{"status", std::to_string(status)}, {"reason", std::string(reason)}});
  HttpReply reply = impl_->ErrorWith(status, reason);
  reply.close = true;
  impl_->Count(kNoRoute, reply.status);
  return reply;
}

HttpService OpenAiRoutes::Service() {
  HttpService service;
  service.serve = [this](HttpRequest request, std::function<void()> wake) {
    return Serve(std::move(request), std::move(wake));
  };
  service.refuse = [this](int status, std::string_view reason) { return Refuse(status, reason); };
  service.draining = [this] { return impl_->health.draining(); };
  return service;
}

std::vector<OpenAiRoutes::RouteInfo> OpenAiRoutes::Routes() {
  std::vector<RouteInfo> routes;
  for (const auto& route : Impl::Table()) routes.push_back(route.info);
  return routes;
}

}  // namespace diffserve
