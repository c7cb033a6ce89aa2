// SPDX-License-Identifier: Apache-2.0
// HttpRoutes: the HTTP port of a server with one model: the paths and methods of every API behind
// the front door. The three health paths need no key, nor do those of the page, which asks the user
// for one. Only authorised clients learn that a path is unknown.
// Thread safety: Serve may be called from any I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "server/api/api_context.h"
#include "server/api/door/front_door.h"
#include "server/api/door/route.h"
#include "server/api/head/api_key.h"

namespace diffserve {

class HttpRoutes {
 public:
  // All references outlive it, and it outlives the HttpServer that uses its service.
  HttpRoutes(HttpRoutesOptions options, Frontend& frontend, const Health& health,
             const ApiKeys& keys);

  HttpAnswer Serve(HttpRequest request, std::function<void()> wake) {
    return door_.Serve(std::move(request), std::move(wake));
  }
  HttpService Service() { return door_.Service(); }
  std::vector<BoundRoute> routes() const;  // of every API, in the order of the APIs

 private:
  FrontDoorOptions DoorOptions() const;

  const std::shared_ptr<ApiContext> context_;
  const FrontDoor door_;
};

}  // namespace diffserve
