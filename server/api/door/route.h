// SPDX-License-Identifier: Apache-2.0
// Route: a method and path of the HTTP port, and the function that answers it. Api: the routes of
// one folder, and the form of their errors. API folders have tables of these, whose answers get the
// ApiContext of a server; a front door has them bound to its own answers.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/head/load_report.h"
#include "server/api/head/trace_context.h"
#include "server/api/reply/reply_members.h"
#include "server/http/message.h"

namespace diffserve {

struct ApiContext;
struct ApiForm;

// What is logged, counted and sent about a request besides its answer.
struct RouteAccount {
  std::string request_id;
  std::string origin;  // the Origin field: the origin of the requesting web page
  std::string client;  // ClientName
  std::optional<TraceContext> trace;
  std::string route;  // as in the table, for the log and the counters
  std::chrono::steady_clock::time_point begin;
  LoadFormat load_format = LoadFormat::kNone;  // format of the load report in the reply
  const ApiForm* api = nullptr;                // of the path; nullptr: none
};

// The body of an error, in an API's form.
using ErrorBody = std::function<std::string(const Status& status)>;

struct RouteCall {
  HttpRequest request;
  RouteAccount account;
  std::function<void()> wake;
  ErrorBody errors = OpenAiErrorBody;  // of the request's path
  // The reply gets its fields and its log line without the front door: another server or a later
  // answer adds them.
  bool completes_itself = false;

  // What an answer needs that begins later, when the request has been read.
  RouteCall Later() const { return {{}, account, wake, errors}; }
};

// `Context`: what an answer gets besides the call.
template <typename... Context>
struct RouteOf {
  std::string_view method;
  std::string_view path;  // as IsPathOf has it; several methods may have the same
  // Called on an I/O thread; must not block.
  std::function<HttpAnswer(Context&... context, RouteCall& call)> answer;
  bool needs_key = true;
  bool acts = method != "GET";  // a request changes more than figures and logs
};

// What the replies of an API have in common.
struct ApiForm {
  using ErrorText = std::string (*)(const Status& status, std::string_view request_id);
  ErrorText error_body = nullptr;  // nullptr: OpenAiErrorBody
  // A path without route at or below this one gets this API's errors. Empty: there is none.
  std::string_view prefix = {};
  // Fields of each reply, besides X-Request-Id.
  using ReplyFields = std::vector<std::pair<std::string, std::string>>;
  ReplyFields (*reply_fields)(std::string_view request_id) = nullptr;
};

template <typename... Context>
struct ApiOf {
  std::vector<RouteOf<Context...>> routes;
  ApiForm form = {};
};

using Route = RouteOf<ApiContext>;
using Api = ApiOf<ApiContext>;
using BoundRoute = RouteOf<>;
using BoundApi = ApiOf<>;

// The same paths, each with the answer that `answer_of` gives its route.
std::vector<BoundApi> Bound(
    const std::vector<Api>& apis,
    const std::function<std::function<HttpAnswer(RouteCall&)>(const Route&)>& answer_of);

// The log line of a reply that is no generated answer.
void LogReply(const RouteAccount& account, int status);

}  // namespace diffserve
