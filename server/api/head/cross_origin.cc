// SPDX-License-Identifier: Apache-2.0
#include "server/api/head/cross_origin.h"

#include <algorithm>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

constexpr char kMethods[] = "GET, POST, DELETE";
constexpr char kMaxAgeSeconds[] = "7200";  // the most that Chromium keeps an answer
// Reply fields that a page may read, besides those that are always readable.
constexpr char kExposedFields[] =
    "X-Request-Id, request-id, anthropic-organization-id, Retry-After, Allow, Accept-Encoding, "
    "WWW-Authenticate, endpoint-load-metrics, "
    "traceparent, tracestate";

// The format in which browsers write an origin: lower case, no path, no slash at the end.
bool IsOrigin(std::string_view text) {
  const size_t scheme = text.find("://");
  if (scheme == std::string_view::npos || scheme == 0 || scheme + 3 == text.size()) return false;
  const auto is_lower_case = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  };
  return std::ranges::all_of(
             text.substr(0, scheme),
             [&](char c) { return is_lower_case(c) || c == '+' || c == '-' || c == '.'; }) &&
         std::ranges::all_of(text.substr(scheme + 3), [&](char c) {
           return is_lower_case(c) || std::string_view("-._:[]").find(c) != std::string_view::npos;
         });
}

}  // namespace

Result<CrossOrigin> CrossOrigin::Parse(const std::vector<std::string>& lists) {
  CrossOrigin parsed;
  for (std::string_view origins : lists) {
    while (!origins.empty()) {
      const std::string_view origin = origins.substr(0, origins.find(','));
      origins.remove_prefix(std::min(origins.size(), origin.size() + 1));
      if (origin != "*" && origin != "null" && !IsOrigin(origin)) {
        return NotAllowed(
            "--cors-origin names " + QuotedText(origin),
            "* or scheme://host[:port] in lower case without a path, several separated by commas",
            "--cors-origin");
      }
      parsed.origins_.emplace_back(origin);
    }
  }
  if (std::ranges::find(parsed.origins_, "*") != parsed.origins_.end()) parsed.origins_ = {"*"};
  return parsed;
}

bool CrossOrigin::Allows(std::string_view origin) const {
  return std::ranges::any_of(origins_, [origin](const std::string& allowed) {
    return allowed == "*" || allowed == origin;
  });
}

std::optional<HttpReply> CrossOrigin::Preflight(const HttpHead& head) const {
  if (head.method != "OPTIONS" || !head.HasField("origin") ||
      !head.HasField("access-control-request-method") || !Allows(head.Field("origin")))
    return std::nullopt;
  HttpReply reply;
  reply.status = 204;
  reply.fields = {{"Access-Control-Allow-Methods", kMethods},
                  {"Access-Control-Max-Age", kMaxAgeSeconds}};
  // The fields are named one by one: a star would leave out Authorization.
  if (const std::string_view fields = head.Field("access-control-request-headers");
      !fields.empty()) {
    reply.fields.emplace_back("Access-Control-Allow-Headers", fields);
    reply.fields.emplace_back("Vary", "Access-Control-Request-Headers");
  }
  if (head.Field("access-control-request-private-network") == "true")
    reply.fields.emplace_back("Access-Control-Allow-Private-Network", "true");
  return reply;
}

bool CrossOrigin::IsForeign(const HttpHead& head) const {
  const std::string_view site = head.Field("sec-fetch-site"), origin = head.Field("origin");
  if (site == "same-origin" || site == "none" || Allows(origin)) return false;
  if (!site.empty()) return true;
  if (!head.HasField("origin")) return false;  // no browser, or a GET of an old one
  // A proxy in front may change the scheme.
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos || origin.substr(scheme + 3) != head.host;
}

void CrossOrigin::AddFields(std::string_view origin, HttpReply* reply) const {
  if (origins_.empty()) return;
  const bool one_for_all = origins_.size() == 1;  // the same in every reply
  if (!one_for_all) reply->fields.emplace_back("Vary", "Origin");
  if (!one_for_all && !Allows(origin)) return;
  reply->fields.emplace_back("Access-Control-Allow-Origin", one_for_all ? origins_[0] : origin);
  reply->fields.emplace_back("Access-Control-Expose-Headers", kExposedFields);
}

}  // namespace diffserve
