// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses/routes.h"

#include <charconv>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/api/api_context.h"
#include "server/api/head/head_fields.h"
#include "server/api/head/random_id.h"
#include "server/api/responses/encoder.h"
#include "server/api/responses/request.h"
#include "server/api/responses/store.h"
#include "server/http/url.h"

namespace diffserve {
namespace {

constexpr size_t kDefaultInputItems = 20;
constexpr size_t kMaxInputItems = 100;

// A stored response as JSON, one turn at a time.
class StoredResponseExchange : public HttpExchange {
 public:
  explicit StoredResponseExchange(std::shared_ptr<const ResponseObject> object)
      : object_(std::move(object)) {
    JsonWriter json(&pieces_);
    AddResponseObject(*object_, &json);
  }
  std::optional<HttpReply> Reply() override {
    HttpReply reply;
    pieces_.Write(kTurnBytes, &reply.body);
    reply.streams = !pieces_.empty();
    if (reply.streams) begin_ = std::exchange(reply.body, {});
    return reply;
  }
  bool Frames(std::string* bytes) override {
    *bytes += std::exchange(begin_, {});
    pieces_.Write(kTurnBytes, bytes);
    return pieces_.empty();
  }

 private:
  const std::shared_ptr<const ResponseObject> object_;
  TextPieces pieces_;
  std::string begin_;
};

std::string IdOf(const RouteCall& call) {
  return std::string(PathId(call.request.head.path, call.account.route));
}

HttpReply NoSuchResponse(const ApiContext& api, std::string_view id, const char* param) {
  return api.Error(Status(StatusCode::kNotFound,
                          "there is no response '" + std::string(id.substr(0, 64)) +
                              "', or it is no longer kept; responses are kept in memory, within "
                              "limits, for the client that created them",
                          param));
}

// The routes and the store that they share.
class ResponsesRoutes : public std::enable_shared_from_this<ResponsesRoutes> {
 public:
  HttpAnswer Create(ApiContext& api, RouteCall& call);
  HttpAnswer Get(ApiContext& api, RouteCall& call);
  HttpAnswer Delete(ApiContext& api, RouteCall& call);
  HttpAnswer Cancel(ApiContext& api, RouteCall& call);
  HttpAnswer InputItems(ApiContext& api, RouteCall& call);

 private:
  HttpAnswer ReadChat(ApiContext& api, RouteCall& call, ResponsesRequest parsed);
  HttpAnswer Start(ApiContext& api, RouteCall& call, bool store, ResponsesChat chat);

  ResponsesStore store_ = ResponsesStore(ResponsesStoreLimits());
};

HttpAnswer ResponsesRoutes::Create(ApiContext& api, RouteCall& call) {
  const auto parse = [self = shared_from_this(), client = call.account.client](
                         std::string_view body, const ReadContext& context) {
    return ParseResponsesRequest(body, context, [&](const std::string& id) {
      const auto answer = self->store_.Find(client, ResponseIdOf(id));
      return answer ? FindItem(*answer->object, id) : std::nullopt;
    });
  };
  return api.ParseThen<ResponsesRequest>(
      call, parse,
      [self = shared_from_this()](ApiContext& api, RouteCall& call,
                                  Result<ResponsesRequest> parsed) -> HttpAnswer {
        if (!parsed.ok()) return api.Refused(parsed.status());
        return self->ReadChat(api, call, std::move(parsed).value());
      });
}

HttpAnswer ResponsesRoutes::ReadChat(ApiContext& api, RouteCall& call, ResponsesRequest parsed) {
  const auto request = std::make_shared<const ResponsesRequest>(std::move(parsed));
  std::optional<StoredResponse> previous;
  size_t bytes = request->HeldBytes();
  if (const std::string& id = request->previous_response_id; !id.empty()) {
    previous = store_.Find(call.account.client, id);
    if (!previous) return NoSuchResponse(api, id, "previous_response_id");
    if (previous->object->state == ResponseState::kInProgress) {
      return api.Error(InvalidArgument("the response '" + id + "' is still in progress",
                                       "previous_response_id"));
    }
    bytes += previous->object->HeldBytes() + previous->input->HeldBytes();
  }
  return api.ReadThen<ResponsesChat>(
      call, bytes,
      [context = api.shared_from_this(), request, previous] {
        return ChatOf(*request, previous ? &*previous : nullptr, context->read_context());
      },
      [self = shared_from_this(), request](ApiContext& api, RouteCall& call,
                                           Result<ResponsesChat> chat) -> HttpAnswer {
        if (!chat.ok()) return api.Refused(chat.status());
        return self->Start(api, call, request->store, std::move(chat).value());
      });
}

HttpAnswer ResponsesRoutes::Start(ApiContext& api, RouteCall& call, bool store,
                                  ResponsesChat chat) {
  const std::string& client = call.account.client;
  ResponseObject object;
  object.id = "resp_" + RandomHex(32);
  object.model = api.model_name();
  object.created_at = std::time(nullptr);
  object.echo = chat.echo;
  std::optional<TextTokens> tokens;
  if (chat.request.logprobs) {
    const GenerateRequest& generate = chat.request.generate;
    object.logprobs = std::make_shared<const LogprobForm>(
        LogprobForm{api.token_texts(), generate.sampling.num_logprobs});
    tokens.emplace(api.token_texts(), generate.skip_special_tokens);
  }
  ResponsesResponse::Hooks hooks = {[](const std::shared_ptr<const ResponseObject>&) {}, [] {}};
  if (store) {  // from the beginning, so that it can be cancelled
    hooks.finish = [self = shared_from_this(),
                    client](std::shared_ptr<const ResponseObject> ended) {
      self->store_.Finish(client, std::move(ended));
    };
    hooks.drop = [self = shared_from_this(), client, id = object.id] {
      self->store_.Drop(client, id);
    };
    store_.Insert(client, {std::make_shared<const ResponseObject>(object), chat.input});
    chat.request.generate.request_id = object.id;  // unique, so Cancel ends only this request
  }
  auto writer = std::make_unique<ResponsesResponse>(
      chat.request.stream, std::move(object), SplitterOf(chat.request, api.token_texts().bytes),
      std::move(hooks), std::move(tokens));
  return api.StartResponse(
      call, {std::move(chat.request.generate), std::move(writer), chat.request.stream});
}

HttpAnswer ResponsesRoutes::Get(ApiContext& api, RouteCall& call) {
  const std::string id = IdOf(call);
  if (const auto value = QueryParameter(call.request.head.query, "stream");
      !value.empty() && value != "false") {
    return api.Error(
        InvalidArgument("stream of a stored response is not supported by this server", "stream"));
  }
  const std::optional<StoredResponse> found = store_.Find(call.account.client, id);
  if (!found) return NoSuchResponse(api, id, "response_id");
  return std::make_unique<StoredResponseExchange>(found->object);
}

HttpAnswer ResponsesRoutes::Delete(ApiContext& api, RouteCall& call) {
  const std::string id = IdOf(call);
  if (!store_.Erase(call.account.client, id)) return NoSuchResponse(api, id, "response_id");
  return JsonReply(JsonObjectOf([&id](JsonWriter& json) {
    json.Add("id", id).Add("object", "response").Add("deleted", true);
  }));
}

HttpAnswer ResponsesRoutes::Cancel(ApiContext& api, RouteCall& call) {
  const std::string id = IdOf(call);
  const std::optional<StoredResponse> found = store_.Find(call.account.client, id);
  if (!found) return NoSuchResponse(api, id, "response_id");
  auto cancelled = std::make_shared<ResponseObject>(*found->object);
  cancelled->state = ResponseState::kCancelled;
  if (found->object->state != ResponseState::kInProgress ||
      !store_.Finish(call.account.client, cancelled)) {
    return api.Error(
        InvalidArgument("the response '" + id + "' is not in progress", "response_id"));
  }
  api.frontend.Cancel(call.account.client, id);
  return std::make_unique<StoredResponseExchange>(std::move(cancelled));
}

HttpAnswer ResponsesRoutes::InputItems(ApiContext& api, RouteCall& call) {
  const std::string id = IdOf(call);
  const std::string_view query = call.request.head.query;
  size_t limit = kDefaultInputItems;
  if (const std::string_view value = QueryParameter(query, "limit"); !value.empty()) {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), limit);
    if (error != std::errc() || end != value.data() + value.size() || limit < 1 ||
        limit > kMaxInputItems) {
      return api.Error(NotOneOf("limit", value, RangeText(1, kMaxInputItems)));
    }
  }
  const std::string_view order = QueryParameter(query, "order");
  if (!order.empty() && order != "asc" && order != "desc")
    return api.Error(NotOneOf("order", order, "asc, desc"));
  const std::optional<StoredResponse> found = store_.Find(call.account.client, id);
  if (!found) return NoSuchResponse(api, id, "response_id");
  return JsonReply(
      InputItemsBody(*found->input, order == "asc", limit, QueryParameter(query, "after")));
}

}  // namespace

Api ResponsesApi() {
  const auto routes = std::make_shared<ResponsesRoutes>();
  const auto to = [&routes](HttpAnswer (ResponsesRoutes::*answer)(ApiContext&, RouteCall&)) {
    return
        [routes, answer](ApiContext& api, RouteCall& call) { return (*routes.*answer)(api, call); };
  };
  return {{
      {"POST", "/v1/responses", to(&ResponsesRoutes::Create)},
      {"GET", "/v1/responses/{id}", to(&ResponsesRoutes::Get)},
      {"DELETE", "/v1/responses/{id}", to(&ResponsesRoutes::Delete)},
      {"POST", "/v1/responses/{id}/cancel", to(&ResponsesRoutes::Cancel)},
      {"GET", "/v1/responses/{id}/input_items", to(&ResponsesRoutes::InputItems)},
  }};
}

}  // namespace diffserve
