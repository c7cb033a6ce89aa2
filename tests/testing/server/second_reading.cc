// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/server/second_reading.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cctype>
#include <map>
#include <string>
#include <utility>

namespace diffserve::testing {
namespace {

// The target of a head as its request line has it. An absolute target is written without an empty
// path's "/" too.
bool IsTargetOf(std::string_view target, const HttpHead& head) {
  const size_t scheme = target.front() == '/' ? target.npos : target.find("://");
  if (scheme != target.npos) {
    target.remove_prefix(scheme + 3);
    if (!target.starts_with(head.host)) return false;
    target.remove_prefix(head.host.size());
  }
  const bool has_query = target.find('?') != target.npos;
  const std::string ours = head.path + (has_query ? "?" : "") + head.query;
  return target == ours ||
         (scheme != target.npos && (target.empty() || target.front() == '?') &&
          ((head.path == "*" && target.empty()) || "/" + std::string(target) == ours));
}

}  // namespace

bool IsReadAlike(std::string_view raw, const HttpHead& head) {
  namespace beast = boost::beast;
  beast::http::request_parser<beast::http::empty_body> parser;
  parser.body_limit(boost::none);
  parser.header_limit(static_cast<uint32_t>(raw.size() + 1));
  parser.skip(true);
  beast::error_code error;
  const size_t used = parser.put(boost::asio::buffer(raw.data(), raw.size()), error);
  const auto& message = parser.get();
  if (error || used != raw.size() || !parser.is_header_done() ||
      message.method_string() != head.method || !IsTargetOf(message.target(), head)) {
    return false;
  }
  // Beast keeps fields of one name together, in the order in which they came.
  std::multimap<std::string, std::string> ours(head.fields.begin(), head.fields.end()), theirs;
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    theirs.emplace(std::move(name), std::string(field.value()));
  }
  return ours == theirs;
}

}  // namespace diffserve::testing
