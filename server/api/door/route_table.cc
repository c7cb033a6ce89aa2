// SPDX-License-Identifier: Apache-2.0
#include "server/api/door/route_table.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/door/nearest_name.h"
#include "server/api/head/head_fields.h"

namespace diffserve {
namespace {

bool IsAtOrBelow(std::string_view path, std::string_view prefix) {
  return !prefix.empty() && path.starts_with(prefix) &&
         (path.size() == prefix.size() || path[prefix.size()] == '/');
}

constexpr size_t kMaxShownPathBytes = 128;

// The path that a client with another base URL means ("/chat/completions", "/v1/v1/models"), else
// the one with the fewest other letters.
std::optional<std::string_view> NearestPath(std::string_view written,
                                            std::span<const std::string_view> paths) {
  std::optional<std::string_view> nearest;
  for (const std::string_view path : paths) {
    const bool has_same_end = written.size() > 1 && path.size() > 1 &&
                              (path.ends_with(written) || written.ends_with(path));
    if (has_same_end && (!nearest || path.size() < nearest->size())) nearest = path;
  }
  return nearest ? nearest : NearestName(written, paths);
}

}  // namespace

FoundRoute FindRoute(std::span<const BoundApi> apis, const HttpHead& head) {
  FoundRoute found;
  for (const BoundApi& api : apis) {
    if (found.api == nullptr && IsAtOrBelow(head.path, api.form.prefix)) found.api = &api.form;
    for (const BoundRoute& route : api.routes) {
      if (!IsPathOf(head.path, route.path)) continue;
      if (route.method == head.method) return {&api.form, &route, true};
      if (found.route == nullptr) found = {&api.form, &route, false};
    }
  }
  return found;
}

Status UnknownPath(std::span<const BoundApi> apis, const HttpHead& head) {
  std::vector<std::string_view> paths;
  for (const BoundApi& api : apis) {
    for (const BoundRoute& route : api.routes) {
      if (route.method == head.method) paths.push_back(route.path);
    }
  }
  const auto nearest = NearestPath(head.path, paths);
  return Status(StatusCode::kNotFound,
                std::string(head.path.substr(0, kMaxShownPathBytes)) + ": there is no such path" +
                    (nearest ? "; did you mean " + std::string(*nearest) + "?" : ""));
}

ErrorBody FoundRoute::error_body(const std::string& request_id) const {
  if (api == nullptr || api->error_body == nullptr) return OpenAiErrorBody;
  return
      [body = api->error_body, request_id](const Status& error) { return body(error, request_id); };
}

void AddIdFields(const ApiForm* api, const std::string& request_id, HttpReply* reply) {
  reply->fields.emplace_back("X-Request-Id", request_id);
  if (api == nullptr || api->reply_fields == nullptr) return;
  std::ranges::move(api->reply_fields(request_id), std::back_inserter(reply->fields));
}

}  // namespace diffserve
