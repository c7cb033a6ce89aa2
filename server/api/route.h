// SPDX-License-Identifier: Apache-2.0
// Route: a method and path of the HTTP port, and the function that answers it. Api: the routes of
// one folder, and the form of their errors.
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

struct Api;
struct ApiContext;

// What is logged, counted and sent about a request besides its answer.
struct RouteAccount {
  std::string request_id;
  std::string origin;  // the Origin field: the origin of the requesting web page
  std::string client;  // ClientName
  std::optional<TraceContext> trace;
  std::string route;  // as in the table, for the log and the counters
  std::chrono::steady_clock::time_point begin;
  LoadFormat load_format = LoadFormat::kNone;  // format of the load report in the reply
  const Api* api = nullptr;                    // of the path; nullptr: none
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
};

struct Route {
  std::string_view method;
  std::string_view path;  // as IsPathOf has it; several methods may have the same
  // Called on an I/O thread; must not block.
  std::function<HttpAnswer(ApiContext& api, RouteCall& call)> answer;
  bool needs_key = true;
  bool acts = method != "GET";  // a request changes more than figures and logs
};

struct Api {
  std::vector<Route> routes;
  std::string (*error_body)(const Status& status,
                            std::string_view request_id) = nullptr;  // nullptr: OpenAiErrorBody
  // A path without route at or below this one gets this API's errors. Empty: there is none.
  std::string_view prefix = {};
  // Fields of each reply, besides X-Request-Id.
  using ReplyFields = std::vector<std::pair<std::string, std::string>>;
  ReplyFields (*reply_fields)(std::string_view request_id) = nullptr;
};

}  // namespace diffserve
