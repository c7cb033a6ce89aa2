// SPDX-License-Identifier: Apache-2.0
// Functions that read a request's head for the routes.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "server/api/head/load_report.h"
#include "server/http/message.h"

namespace diffserve {

// The client's id if it is valid in a header and in a log line, else a new one.
std::string RequestIdOf(std::string_view wanted);
bool IsJsonType(std::string_view content_type);
// The load report's format. The format that has no HTTP header is ignored like an unknown one.
LoadFormat HttpLoadFormat(const HttpHead& head);
// Whether a route's path matches the request's. A path that ends in '/' (except "/" itself) is
// followed by a name; "{id}" matches one segment that is not empty.
bool IsPathOf(std::string_view path, std::string_view route);
inline constexpr std::string_view kPathId = "{id}";
// The segment at "{id}"; empty if it has several segments. REQUIRES: the rest of the path matches
// the route.
std::string_view PathId(std::string_view path, std::string_view route);

}  // namespace diffserve
