// SPDX-License-Identifier: Apache-2.0
// The APIs of the HTTP port. Each has a folder of its own, and a line in apis.cc.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "server/api/api_context.h"
#include "server/api/route.h"

namespace diffserve {

// The route of a head, and the API whose errors its path gets.
struct FoundRoute {
  const Api* api = nullptr;      // nullptr: none
  const Route* route = nullptr;  // nullptr: unknown path
  bool takes_method = false;
  ErrorBody error_body(const std::string& request_id) const;
};
FoundRoute FindRoute(std::span<const Api> apis, const HttpHead& head);
// kNotFound for a path without route, with the nearest path that takes the method.
Status UnknownPath(std::span<const Api> apis, const HttpHead& head);
// Adds the fields that name a request by its id. `api` may be null.
void AddIdFields(const Api* api, const std::string& request_id, HttpReply* reply);

std::vector<Api> AllApis(const HttpRoutesOptions& options);

}  // namespace diffserve
