// SPDX-License-Identifier: Apache-2.0
// HttpRoutes: the paths and methods of the HTTP port, those of every API. The API key is checked
// before routing. The three health paths need no key, nor do those of the page, which asks the user
// for one. Only authorised clients learn that a path is unknown.
// Thread safety: Serve and Refuse may be called from any I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "server/api/api_context.h"
#include "server/api/apis.h"
#include "server/api/front_door.h"
#include "server/api/head/api_key.h"
#include "server/api/route.h"

namespace diffserve {

class HttpRoutes {
 public:
  // The label of requests without route: unknown paths, and requests that the gate refused.
  static constexpr std::string_view kNoRoute = "other";

  // All references outlive it, and it outlives the HttpServer that uses its service.
  HttpRoutes(HttpRoutesOptions options, Frontend& frontend, const Health& health,
             const ApiKeys& keys);

  HttpAnswer Serve(HttpRequest request, std::function<void()> wake);
  HttpReply Refuse(int status, std::string_view reason, const HttpHead& head) const;
  HttpService Service();
  std::vector<Route> routes() const;  // of every API, in the order of the APIs

 private:
  HttpAnswer Dispatch(RouteCall& call);
  DoorPath PathOf(const FoundRoute& found) const;
  void AddFields(const RouteAccount& account, HttpReply& reply) const;
  void End(const RouteAccount& account, int status) const;

  const std::shared_ptr<ApiContext> context_;
  const ApiKeys& keys_;
  const std::vector<Api> apis_;
  const FrontDoor door_;
};

}  // namespace diffserve
