// SPDX-License-Identifier: Apache-2.0
#include "server/http/url.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

bool IsHostCharacter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
         c == '-' || c == '_';
}

// As an IPv6 address is written, with a zone if need be: "fe80::1%eth0". The resolver looks closer.
bool IsAddressCharacter(char c) { return IsHostCharacter(c) || c == ':' || c == '%'; }

}  // namespace

std::string HttpUrl::Authority() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

Result<HttpUrl> ParseHttpUrl(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  const Status bad = NotOneOf("URL", text, "http://HOST:PORT[/PATH]");
  if (!text.starts_with(kScheme)) return bad;
  const std::string_view rest = text.substr(kScheme.size());
  const std::string_view authority = rest.substr(0, rest.find('/'));
  const std::string_view path = rest.substr(authority.size());
  const size_t colon = authority.rfind(':');
  if (colon == std::string_view::npos) return bad;

  std::string_view host = authority.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() ||
      !std::all_of(host.begin(), host.end(), bracketed ? IsAddressCharacter : IsHostCharacter))
    return bad;
  const std::string_view port = authority.substr(colon + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535)
    return bad;
  if (!std::all_of(path.begin(), path.end(),
                   [](char c) { return c > ' ' && c < '\x7f' && c != '#'; }))
    return bad;

  HttpUrl url;
  url.host = host;
  url.port = port;
  if (!path.empty()) url.path = path;
  return url;
}

Result<ServerPlace> ParseServerPlace(std::string_view text) {
  constexpr std::string_view kUnix = "unix:";
  if (text.starts_with(kUnix) && text.size() > kUnix.size())
    return ServerPlace{{.host = "localhost", .port = "80"}, std::string(text.substr(kUnix.size()))};
  Result<HttpUrl> url = ParseHttpUrl(text);
  if (url.ok()) return ServerPlace{*std::move(url)};
  return InvalidArgument(url.status().message() + ", unix:PATH", "URL");
}

Result<HttpUrl> ParseServerUrl(std::string_view text) {
  constexpr char kFlag[] = "--url";
  constexpr std::string_view kPaths[] = {"", "/", "/v1", "/v1/"};
  const std::string found = "--url is \"" + std::string(text) + "\"";
  if (text.starts_with("https://"))
    return NotAllowed(found + ": https is not offered", "http://HOST:PORT", kFlag);
  Result<HttpUrl> url = ParseHttpUrl(text);
  const Status bad = NotAllowed(found, "http://HOST:PORT", kFlag);
  if (!url.ok()) return bad;
  const size_t slash = text.find('/', std::string_view("http://").size());
  const std::string_view path = slash == std::string_view::npos ? "" : text.substr(slash);
  if (std::ranges::find(kPaths, path) == std::end(kPaths)) return bad;
  url->path.clear();
  return url;
}

std::string_view QueryParameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=')
      return pair.substr(name.size() + 1);
  }
  return {};
}

std::string PercentDecoded(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size() || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0) return {};
    out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
    i += 2;
  }
  return out;
}

}  // namespace diffserve
