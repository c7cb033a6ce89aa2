// SPDX-License-Identifier: Apache-2.0
// Route: a method and path of the HTTP port, and the function that answers it. Api: the routes of
// one folder, and the form of their errors.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/head/load_report.h"
#include "server/api/head/trace_context.h"
#include "server/api/reply/reply_members.h"
#include "server/http/message.h"

namespace diffserve {

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
};

struct RouteCall {
  HttpRequest request;
  RouteAccount account;
  std::function<void()> wake;
};

struct Route {
  std::string_view method;
  std::string_view path;  // as IsPathOf has it; several methods may have the same
  // Called on an I/O thread; must not block.
  std::function<HttpAnswer(ApiContext& api, RouteCall& call)> answer;
  bool needs_key = true;
};

// The body of an error, in an API's form.
using ErrorBody = std::function<std::string(const Status& status)>;

struct Api {
  std::vector<Route> routes;
  ErrorBody error_body = OpenAiErrorBody;
  // A path without route at or below this one gets this API's errors. Empty: there is none.
  std::string_view prefix = {};
};

}  // namespace diffserve
