// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/head_fields.h"
#include "server/api/responses/encoder.h"
#include "server/api/responses/request.h"
#include "server/api/routes_impl.h"
#include "server/api/trace_context.h"
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

}  // namespace

HttpReply OpenAiRoutes::Impl::ResponsesError(const Status& status) const {
  return Error(InResponsesNames(status));
}

HttpReply OpenAiRoutes::Impl::NoSuchResponse(std::string_view id, const char* param) const {
  return Error(Status(StatusCode::kNotFound,
                      "there is no response '" + std::string(id.substr(0, 64)) +
                          "', or it is no longer kept; responses are kept in memory, within "
                          "limits, for the client that created them",
                      param));
}

HttpAnswer OpenAiRoutes::Impl::Responses(RouteCall& call) {
  const auto parse = [store = responses, client = call.account.client](std::string_view body,
                                                                       const ReadContext& context) {
    return ParseResponsesRequest(body, context, [&](const std::string& id) {
      const auto answer = store->Find(client, ResponseIdOf(id));
      return answer ? FindItem(*answer->object, id) : std::nullopt;
    });
  };
  return ParseThen<ResponsesRequest>(call, parse, &Impl::ResponsesParsed);
}

HttpAnswer OpenAiRoutes::Impl::ResponsesParsed(RouteCall& call, Result<ResponsesRequest> parsed) {
  if (!parsed.ok()) return Refused(parsed.status(), OpenAiErrors());
  auto request = std::make_shared<const ResponsesRequest>(std::move(parsed).value());
  std::optional<StoredResponse> previous;
  size_t bytes = request->HeldBytes();
  if (const std::string& id = request->previous_response_id; !id.empty()) {
    previous = responses->Find(call.account.client, id);
    if (!previous) return NoSuchResponse(id, "previous_response_id");
    if (previous->object->state == ResponseState::kInProgress) {
      return Error(InvalidArgument("the response '" + id + "' is still in progress",
                                   "previous_response_id"));
    }
    bytes += previous->object->HeldBytes() + previous->input->HeldBytes();
  }
  return ReadThen<ResponsesChat>(
      call, bytes,
      [self = shared_from_this(), request, previous] {
        return ChatOf(*request, previous ? &*previous : nullptr, self->Context());
      },
      [request](Impl& self, RouteCall& later, Result<ResponsesChat> chat) {
        return self.ResponsesRead(later, *request, std::move(chat));
      });
}

HttpAnswer OpenAiRoutes::Impl::ResponsesRead(RouteCall& call, const ResponsesRequest& request,
                                             Result<ResponsesChat> chat) {
  const ErrorReply errors = ErrorsOf(&Impl::ResponsesError);
  if (!chat.ok()) return Refused(chat.status(), errors);
  ResponseObject object;
  object.id = "resp_" + RandomHex16() + RandomHex16();
  object.model = frontend.options().served_model_name;
  object.created_at = std::time(nullptr);
  object.echo = chat->echo;
  ResponsesResponse::Hooks hooks = {[](const std::shared_ptr<const ResponseObject>&) {}, [] {}};
  // Stored from the beginning, so that it can be cancelled.
  const bool kept = request.store && options.responses_store.max_entries > 0;
  if (kept) {
    hooks.finish = [store = responses,
                    client = call.account.client](std::shared_ptr<const ResponseObject> ended) {
      store->Finish(client, std::move(ended));
    };
    hooks.drop = [store = responses, client = call.account.client, id = object.id] {
      store->Drop(client, id);
    };
    responses->Insert(call.account.client,
                      {std::make_shared<const ResponseObject>(object), chat->input});
    chat->request.generate.request_id = object.id;  // unique, so Cancel ends only this request
  }
  auto writer = std::make_unique<ResponsesResponse>(chat->request.stream, std::move(object),
                                                    SplitterOf(chat->request, TokenBytesOf()),
                                                    std::move(hooks));
  return StartResponse(call, std::move(chat->request.generate),
                       {std::move(writer), chat->request.stream, errors});
}

HttpAnswer OpenAiRoutes::Impl::GetResponse(RouteCall& call) {
  const std::string id = IdOf(call);
  if (const auto value = QueryParameter(call.request.head.query, "stream");
      !value.empty() && value != "false") {
    return Error(
        InvalidArgument("stream of a stored response is not supported by this server", "stream"));
  }
  const std::optional<StoredResponse> found = responses->Find(call.account.client, id);
  if (!found) return NoSuchResponse(id, "response_id");
  return std::make_unique<StoredResponseExchange>(found->object);
}

HttpAnswer OpenAiRoutes::Impl::DeleteResponse(RouteCall& call) {
  const std::string id = IdOf(call);
  if (!responses->Erase(call.account.client, id)) return NoSuchResponse(id, "response_id");
  return Json(JsonObjectOf([&id](JsonWriter& json) {
    json.Add("id", id).Add("object", "response").Add("deleted", true);
  }));
}

HttpAnswer OpenAiRoutes::Impl::CancelResponse(RouteCall& call) {
  const std::string id = IdOf(call);
  const std::optional<StoredResponse> found = responses->Find(call.account.client, id);
  if (!found) return NoSuchResponse(id, "response_id");
  auto cancelled = std::make_shared<ResponseObject>(*found->object);
  cancelled->state = ResponseState::kCancelled;
  if (found->object->state != ResponseState::kInProgress ||
      !responses->Finish(call.account.client, cancelled)) {
    return Error(InvalidArgument("the response '" + id + "' is not in progress", "response_id"));
  }
  frontend.Cancel(id);
  return std::make_unique<StoredResponseExchange>(std::move(cancelled));
}

HttpAnswer OpenAiRoutes::Impl::ResponseInputItems(RouteCall& call) {
  const std::string id = IdOf(call);
  const std::string_view query = call.request.head.query;
  size_t limit = kDefaultInputItems;
  if (const std::string_view value = QueryParameter(query, "limit"); !value.empty()) {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), limit);
    if (error != std::errc() || end != value.data() + value.size() || limit < 1 ||
        limit > kMaxInputItems) {
      return Error(InvalidArgument("limit is '" + std::string(value.substr(0, 64)) + "'; 1 to " +
                                       std::to_string(kMaxInputItems) + " are allowed",
                                   "limit"));
    }
  }
  const std::string_view order = QueryParameter(query, "order");
  if (!order.empty() && order != "asc" && order != "desc")
    return Error(InvalidArgument("order must be asc or desc", "order"));
  const std::optional<StoredResponse> found = responses->Find(call.account.client, id);
  if (!found) return NoSuchResponse(id, "response_id");
  return Json(InputItemsBody(*found->input, order == "asc", limit, QueryParameter(query, "after")));
}

}  // namespace diffserve
