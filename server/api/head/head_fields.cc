// SPDX-License-Identifier: Apache-2.0
#include "server/api/head/head_fields.h"

#include <algorithm>

#include "server/api/head/random_id.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {

std::string RequestIdOf(std::string_view wanted) {
  const auto valid = [](char c) {
    const bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9');
    return alphanumeric || std::string_view("-_.:").find(c) != std::string_view::npos;
  };
  const bool usable = !wanted.empty() && wanted.size() <= kMaxRequestIdBytes &&
                      std::all_of(wanted.begin(), wanted.end(), valid);
  return usable ? std::string(wanted) : RandomHex(32);
}

bool IsJsonType(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  type.erase(
      std::find_if(type.rbegin(), type.rend(), [](char c) { return c != ' ' && c != '\t'; }).base(),
      type.end());
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  std::transform(type.begin(), type.end(), type.begin(), lower);
  return type == "application/json";
}

LoadFormat HttpLoadFormat(const HttpHead& head) {
  const LoadFormat format = LoadFormatOf(head.Field(kLoadFormatField));
  return format == LoadFormat::kBinary ? LoadFormat::kNone : format;
}

bool IsPathOf(std::string_view path, std::string_view route) {
  if (const size_t id = route.find(kPathId); id != std::string_view::npos) {
    const std::string_view after = route.substr(id + kPathId.size());
    return path.size() > id + after.size() && path.starts_with(route.substr(0, id)) &&
           path.ends_with(after) && !PathId(path, route).empty();
  }
  if (route == "/" || route.back() != '/') return path == route;
  return path.size() > route.size() && path.starts_with(route);
}

std::string_view PathId(std::string_view path, std::string_view route) {
  const size_t id = route.find(kPathId);
  const size_t after = route.size() - id - kPathId.size();
  const std::string_view name = path.substr(id, path.size() - id - after);
  return name.find('/') == std::string_view::npos ? name : std::string_view();
}

}  // namespace diffserve
