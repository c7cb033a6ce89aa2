// SPDX-License-Identifier: Apache-2.0
// OpenAiRoutes::Impl: shared by all routes of the HTTP port. A route is a member function that
// answers a RouteCall, and a row of Table(). Each family of routes has its own file
// (generate_routes.cc, ...). Private to these files.
// Thread safety: as OpenAiRoutes. A reply that is made on a text thread holds a shared pointer to
// the Impl.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "server/api/attention/request.h"
#include "server/api/exchange.h"
#include "server/api/load_report.h"
#include "server/api/openai/encoder.h"
#include "server/api/openai/request.h"
#include "server/api/responses/request.h"
#include "server/api/routes.h"
#include "server/api/trace_context.h"
#include "server/api/vllm/request.h"
#include "server/http/content_coding.h"
#include "server/serving/build_version.h"
#include "server/ui/files.h"

namespace diffserve {

struct EmbeddingRequest;

inline constexpr size_t kMaxInlineBodyBytes = 64 << 10;  // parsed in well under a millisecond

// What is logged, counted and sent about a request besides its answer.
struct RouteAccount {
  std::string request_id;
  std::string origin;  // the Origin field: the origin of the requesting web page
  std::string client;  // ClientName
  std::optional<TraceContext> trace;
  std::string route;  // as in the table, for the log and the counters
  std::chrono::steady_clock::time_point begin;
  LoadFormat load_format = LoadFormat::kNone;  // format of the load report in the reply
};

struct RouteCall {
  HttpRequest request;
  RouteAccount account;
  std::function<void()> wake;
};

// Shared with running replies on text threads, which may end after the server has stopped.
struct OpenAiRoutes::Impl : std::enable_shared_from_this<OpenAiRoutes::Impl> {
  Impl(OpenAiRoutesOptions options_in, Frontend& frontend_in, const Health& health_in,
       const ApiKeys& keys_in)
      : options(std::move(options_in)),
        frontend(frontend_in),
        health(health_in),
        keys(keys_in),
        responses(std::make_shared<ResponsesStore>(options.responses_store)) {}

  using Call = RouteCall;
  using Answer = HttpAnswer (Impl::*)(Call& call);
  // An error in the format of the route's API.
  using ErrorForm = HttpReply (Impl::*)(const Status& status) const;
  struct Route {
    RouteInfo info;
    Answer answer;
  };
  static std::span<const Route> Table();
  static std::string MethodsOf(std::string_view path);
  // In the format of the API that a path belongs to, even if the path has no route.
  static ErrorForm FormOf(std::string_view path);

  HttpAnswer Completions(Call& call) {
    return ParseThen(call, ParseCompletionRequest, &Impl::Generate);
  }
  HttpAnswer ChatCompletions(Call& call) {
    return ParseThen(call, ParseChatRequest, &Impl::Generate);
  }
  HttpAnswer Messages(Call& call);
  HttpAnswer CountTokens(Call& call);
  HttpAnswer Responses(Call& call);
  HttpAnswer GetResponse(Call& call);
  HttpAnswer DeleteResponse(Call& call);
  HttpAnswer CancelResponse(Call& call);
  HttpAnswer ResponseInputItems(Call& call);
  HttpAnswer Embeddings(Call& call);
  HttpAnswer Attention(Call& call) {
    return ParseThen(call, ParseAttentionRequest, &Impl::AttentionParsed);
  }
  HttpAnswer Tokenize(Call& call) {
    return ParseThen(call, ParseTokenizeRequest, &Impl::TokenizeParsed);
  }
  HttpAnswer Detokenize(Call& call) {
    return ParseThen(call, ParseDetokenizeRequest, &Impl::DetokenizeParsed);
  }
  HttpAnswer TokensInOut(Call& call) {
    return ParseThen(call, ParseTokenRequest, &Impl::TokensParsed);
  }
  HttpAnswer RenderCompletion(Call& call) {
    return ParseThen(call, ParseCompletionRequest, &Impl::RenderParsed);
  }
  HttpAnswer RenderChat(Call& call) {
    return ParseThen(call, ParseChatRequest, &Impl::RenderParsed);
  }
  HttpAnswer TokenizerInfo(Call&) { return Json(options.tokenizer_info); }
  HttpAnswer Models(Call&);
  HttpAnswer Model(Call& call);
  HttpAnswer Version(Call&) {
    return Json(JsonObjectOf([](JsonWriter& json) {
      json.Add("version", BuildVersion()).Add("commit", BuildCommit());
    }));
  }
  HttpAnswer Load(Call&) { return Json(JsonObjectOf("server_load", in_flight->load())); }
  HttpAnswer Live(Call&) { return Json(JsonObjectOf("status", "ok")); }
  HttpAnswer Ready(Call& call);
  HttpAnswer Metrics(Call& call);
  HttpAnswer ResetPrefixCache(Call& call);
  HttpAnswer Page(Call& call) {
    return UiReply(call.request.head.path)
        .value_or(Error(Status(StatusCode::kNotFound, "the page has no such file")));
  }

  HttpAnswer Dispatch(Call& call);
  void Count(std::string_view route, int status) const { options.on_reply(route, status); }
  void AddFields(const RouteAccount& account, HttpReply& reply) const;
  void End(const RouteAccount& account, int status) const;
  // Reads a body. A named type, so that `Parsed` is not deduced from it.
  template <typename Parsed>
  using BodyParser =
      std::type_identity_t<std::function<Result<Parsed>(std::string_view, const ReadContext&)>>;
  // Parses small bodies at once and large ones on a text thread. Bodies with a content coding are
  // decoded there first.
  template <typename Parsed>
  HttpAnswer ParseThen(Call& call, BodyParser<Parsed> parse,
                       HttpAnswer (Impl::*start)(Call&, Result<Parsed>),
                       ErrorForm error = &Impl::Error);
  // The same for any work; `bytes`: the size of its input.
  template <typename Parsed>
  HttpAnswer ReadThen(Call& call, size_t bytes, std::function<Result<Parsed>()> read,
                      std::function<HttpAnswer(Impl&, Call&, Result<Parsed>)> start,
                      ErrorForm error = &Impl::Error);
  HttpAnswer MessagesParsed(Call& call, Result<AnswerRequest> parsed);
  HttpAnswer CountTokensParsed(Call& call, Result<AnswerRequest> parsed);
  HttpAnswer ResponsesParsed(Call& call, Result<ResponsesRequest> parsed);
  HttpAnswer ResponsesRead(Call& call, const ResponsesRequest& request, Result<ResponsesChat> chat);
  HttpReply NoSuchResponse(std::string_view id, const char* param) const;
  HttpAnswer Generate(Call& call, Result<OpenAiRequest> parsed);
  HttpAnswer EmbeddingsParsed(Call& call, Result<EmbeddingRequest> parsed);
  HttpAnswer AttentionParsed(Call& call, Result<OpenAiAttentionRequest> parsed);
  HttpAnswer TokenizeParsed(Call& call, Result<TokenizeRequest> parsed);
  HttpAnswer DetokenizeParsed(Call& call, Result<DetokenizeRequest> parsed);
  HttpAnswer TokensParsed(Call& call, Result<TokenRequest> parsed);
  HttpAnswer RenderParsed(Call& call, Result<OpenAiRequest> parsed);
  Result<std::string> RenderedText(const TokenizedRequest& rendered, const GenerateRequest& asked,
                                   const std::string& id, bool chat) const;
  Status CheckModel(const std::string& model) const;
  using ErrorReply = std::function<HttpReply(const Status& status)>;
  ErrorReply ErrorsOf(ErrorForm form) {
    return [self = shared_from_this(), form](const Status& error) { return (*self.*form)(error); };
  }
  ErrorReply OpenAiErrors() { return ErrorsOf(&Impl::Error); }
  HttpReply RefuseDraining(const ErrorReply& error_reply) const;
  // During a drain every request gets this error, whatever else is wrong with it.
  HttpAnswer Refused(const Status& status, const ErrorReply& error_reply) const;
  struct NewResponse {
    std::unique_ptr<AnswerWriter> writer;
    bool streams = false;
    ErrorReply error_reply;
  };
  // Sets the client's name and starts the generation.
  HttpAnswer StartResponse(RouteCall& call, GenerateRequest request, NewResponse response);
  TokenBytes TokenBytesOf() const {
    return [this](int32_t id) { return frontend.tokenizer().TokenBytes(id); };
  }
  TokenTexts TokenTextsOf() const {
    const Tokenizer& tokenizer = frontend.tokenizer();
    return {[&tokenizer](int32_t id) { return tokenizer.TokenBytes(id); },
            [&tokenizer](int32_t id) { return tokenizer.FirstTokenBytes(id); },
            [&tokenizer](int32_t id) { return tokenizer.IsSpecial(id); }};
  }
  static void LogEnd(const RouteAccount& account, const ExchangeOutcome& outcome);
  HttpReply Error(const Status& status) const;
  HttpReply MessagesError(const Status& status) const;   // Anthropic's form
  HttpReply ResponsesError(const Status& status) const;  // members by the names of /v1/responses
  HttpReply ErrorOf(const Status& status, std::string body) const;
  HttpAnswer Pending(std::shared_ptr<PendingReply> pending) const {
    return std::make_unique<PendingReplyExchange>(
        std::move(pending),
        [self = shared_from_this()](const Status& error) { return self->Error(error); });
  }
  HttpReply ErrorWith(int http_status, std::string_view reason,
                      ErrorForm form = &Impl::Error) const;
  HttpReply UnknownCoding(std::string_view coding, ErrorForm form) const;
  static HttpReply Json(std::string body);
  ModelCard Card(const std::string& name) const;
  ReadContext Context() const { return {&frontend.options(), frontend.DefaultSampling()}; }
  OpenAiIdentity Identity(const Call& call, bool chat) const;

  OpenAiRoutesOptions options;
  Frontend& frontend;
  const Health& health;
  const ApiKeys& keys;
  const std::shared_ptr<ResponsesStore> responses;
  const int64_t created = std::time(nullptr);
  const std::shared_ptr<std::atomic<int64_t>> in_flight = std::make_shared<std::atomic<int64_t>>(0);
};

template <typename Parsed>
HttpAnswer OpenAiRoutes::Impl::ParseThen(Call& call, BodyParser<Parsed> parse,
                                         HttpAnswer (Impl::*start)(Call&, Result<Parsed>),
                                         ErrorForm error) {
  auto body = std::make_shared<std::string>(std::move(call.request.body));
  const std::string_view coding_name = call.request.head.Field("content-encoding");
  const std::optional<ContentCoding> coding = ContentCodingOf(coding_name);
  if (!coding) return UnknownCoding(coding_name, error);
  if (*coding != ContentCoding::kIdentity) {
    using Decoded = std::variant<std::string, HttpRefusal>;
    return ReadThen<Decoded>(
        call, std::max(body->size(), kMaxInlineBodyBytes + 1),
        [coding = *coding, body, max_bytes = options.max_body_bytes]() -> Result<Decoded> {
          return DecodeBody(coding, *body, max_bytes);
        },
        [parse, start, error](Impl& self, Call& later, Result<Decoded> decoded) -> HttpAnswer {
          if (!decoded.ok()) return (self.*error)(decoded.status());
          if (const auto* refusal = std::get_if<HttpRefusal>(&*decoded))
            return self.ErrorWith(refusal->status, refusal->reason, error);
          later.request.body = std::get<std::string>(*std::move(decoded));
          return self.ParseThen(later, parse, start, error);
        },
        error);
  }
  return ReadThen<Parsed>(
      call, body->size(),
      [self = shared_from_this(), body, parse] { return parse(*body, self->Context()); },
      std::mem_fn(start), error);
}

template <typename Parsed>
HttpAnswer OpenAiRoutes::Impl::ReadThen(
    Call& call, size_t bytes, std::function<Result<Parsed>()> read,
    std::function<HttpAnswer(Impl&, Call&, Result<Parsed>)> start, ErrorForm error) {
  if (bytes <= kMaxInlineBodyBytes) return start(*this, call, read());
  auto parsed = std::make_shared<PendingResult<Parsed>>(call.wake);
  const Status status = frontend.RunOnTextThread(
      call.account.client, bytes, [parsed, read = std::move(read)](bool run) {
        parsed->Fill(
            run ? read()
                : Result<Parsed>(Status(StatusCode::kUnavailable, "the server is shutting down")));
      });
  if (!status.ok()) return (this->*error)(status);
  auto later = std::make_shared<Call>(Call{{}, call.account, call.wake});
  return std::make_unique<DeferredExchange>(
      [self = shared_from_this(), parsed, later,
       start = std::move(start)]() -> std::optional<HttpAnswer> {
        std::optional<Result<Parsed>> taken = parsed->Take();
        if (!taken) return std::nullopt;
        return start(*self, *later, *std::move(taken));
      });
}

}  // namespace diffserve
