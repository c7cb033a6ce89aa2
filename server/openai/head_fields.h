// What the routes read of a request's head.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "server/http/message.h"
#include "server/load_report.h"

namespace diffserve {

// The client's id if it is one that can stand in a header and a log line, else a new one.
std::string RequestIdOf(std::string_view wanted);
bool IsJsonType(std::string_view content_type);
// Of the formats the one that HTTP's headers have no field for is ignored like an unknown one.
LoadFormat HttpLoadFormat(const HttpHead& head);
// Whether a route's path means the request's. One that ends in '/' is followed by a name, but for
// "/" itself; "{id}" in it stands for one segment that is not empty.
bool IsPathOf(std::string_view path, std::string_view route);
inline constexpr std::string_view kPathId = "{id}";
// What stands at "{id}", empty if it is more than a segment. REQUIRES: the rest of the path is as
// the route's.
std::string_view PathId(std::string_view path, std::string_view route);

}  // namespace diffserve
