// SPDX-License-Identifier: Apache-2.0
// The search for a request's route among the tables of an HTTP port.
// Thread safety: pure functions.
#pragma once

#include <span>
#include <string>

#include "server/api/door/route.h"

namespace diffserve {

// The route of a head, and the API whose errors its path gets.
struct FoundRoute {
  const ApiForm* api = nullptr;       // nullptr: none
  const BoundRoute* route = nullptr;  // nullptr: unknown path
  bool takes_method = false;
  ErrorBody error_body(const std::string& request_id) const;
};
FoundRoute FindRoute(std::span<const BoundApi> apis, const HttpHead& head);
// kNotFound for a path without route, with the nearest path that takes the method.
Status UnknownPath(std::span<const BoundApi> apis, const HttpHead& head);
// Adds the fields that name a request by its id. `api` may be null.
void AddIdFields(const ApiForm* api, const std::string& request_id, HttpReply* reply);

}  // namespace diffserve
