// SPDX-License-Identifier: Apache-2.0
#include "server/http/gate.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

constexpr size_t kMethodAndVersionBytes = 64;  // of a request line without its target

using FieldView = std::pair<std::string_view, std::string_view>;  // name as sent, value trimmed

struct HeadParts {
  std::string_view method, target, version;
  std::string_view scheme, authority;  // of a target in absolute form
  std::string_view path;               // with the query; the absolute form may have none
  std::vector<FieldView> fields;
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool IsTokenChar(char c) {
  return IsDigit(c) || IsLetter(c) ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenChar);
}

bool EqualsIgnoringCase(std::string_view a, std::string_view lower) {
  return a.size() == lower.size() && std::equal(a.begin(), a.end(), lower.begin(),
                                                [](char x, char y) { return Lower(x) == y; });
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), Lower);
  return lower;
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

size_t Count(const HeadParts& head, std::string_view name) {
  return static_cast<size_t>(
      std::count_if(head.fields.begin(), head.fields.end(),
                    [&](const FieldView& f) { return EqualsIgnoringCase(f.first, name); }));
}

std::string_view Value(const HeadParts& head, std::string_view name) {
  for (const auto& [field, value] : head.fields) {
    if (EqualsIgnoringCase(field, name)) return value;
  }
  return {};
}

bool Has(const HeadParts& head, std::string_view name) { return Count(head, name) > 0; }

// Lines without their CRLF; the last one (empty) is left out.
std::vector<std::string_view> Lines(std::string_view raw) {
  std::vector<std::string_view> lines;
  while (!raw.empty()) {
    const size_t end = raw.find("\r\n");
    if (end == std::string_view::npos || end == 0) break;
    lines.push_back(raw.substr(0, end));
    raw.remove_prefix(end + 2);
  }
  return lines;
}

bool HasBareLineEnd(std::string_view raw) {
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] == '\n' && (i == 0 || raw[i - 1] != '\r')) return true;
    if (raw[i] == '\r' && i + 1 < raw.size() && raw[i + 1] != '\n') return true;
  }
  return false;
}

bool HasControl(std::string_view raw) {
  return std::any_of(raw.begin(), raw.end(), [](unsigned char c) {
    return (c < 0x20 && c != '\r' && c != '\n' && c != '\t') || c == 0x7F;
  });
}

// The absolute form is "scheme://authority", and then a path or query if there is one.
void SplitTarget(HeadParts* parts) {
  parts->path = parts->target;
  const size_t colon = parts->target.find("://");
  if (colon == std::string_view::npos || !IsToken(parts->target.substr(0, colon))) return;
  const std::string_view rest = parts->target.substr(colon + 3);
  parts->scheme = parts->target.substr(0, colon);
  parts->authority = rest.substr(0, rest.find_first_of("/?"));
  parts->path = rest.substr(parts->authority.size());
}

// A request line is exactly "method SP target SP version". False, with nothing changed, for others.
bool SplitRequestLine(std::string_view line, HeadParts* parts) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || last <= first + 1 || line.find(' ', first + 1) != last)
    return false;
  const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
  if (!IsToken(method) || version.substr(0, 5) != "HTTP/" || line.find('\t') != line.npos)
    return false;
  parts->method = method;
  parts->target = line.substr(first + 1, last - first - 1);
  parts->version = version;
  SplitTarget(parts);
  return true;
}

std::optional<FieldView> SplitField(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !IsToken(line.substr(0, colon))) return std::nullopt;
  return FieldView(line.substr(0, colon), Trimmed(line.substr(colon + 1)));
}

bool IsValidHost(std::string_view host) {
  std::string_view name = host;
  std::string_view port;
  if (!host.empty() && host.front() == '[') {  // an IPv6 literal
    const size_t end = host.find(']');
    if (end == std::string_view::npos || end < 3) return false;
    name = host.substr(1, end - 1);
    port = host.substr(end + 1);
    const auto valid = [](char c) {
      return IsDigit(c) || (Lower(c) >= 'a' && Lower(c) <= 'f') || c == ':' || c == '.';
    };
    if (!std::all_of(name.begin(), name.end(), valid)) return false;
  } else {
    const size_t colon = host.find(':');
    if (colon != std::string_view::npos) {
      name = host.substr(0, colon);
      port = host.substr(colon);
    }
    const auto valid = [](char c) {
      return IsDigit(c) || IsLetter(c) || c == '.' || c == '-' || c == '_';
    };
    if (name.empty() || name.size() > 255 || !std::all_of(name.begin(), name.end(), valid))
      return false;
  }
  if (port.empty()) return true;
  return port.front() == ':' && port.size() <= 6 &&
         std::all_of(port.begin() + 1, port.end(), IsDigit);
}

bool IsLength(std::string_view text) {
  return !text.empty() && text.size() <= 18 && std::all_of(text.begin(), text.end(), IsDigit);
}

// A path, an absolute URL, or "*" of OPTIONS.
bool IsTarget(const HeadParts& head) {
  const std::string_view path = head.path;
  if (path == "*") return head.method == "OPTIONS" && head.scheme.empty();
  const bool begins_well = path.empty() || path.front() == '?' ? !head.scheme.empty()
                                                               : path.front() == '/';
  return begins_well && std::all_of(path.begin(), path.end(), [](unsigned char c) {
           return c > 0x20 && c < 0x7F && c != '#' && c != '\\' && c != '"' && c != '<' && c != '>';
         });
}

// A client that knows no name of the server may leave the value empty.
bool IsHostField(std::string_view value) { return value.empty() || IsValidHost(value); }

bool IsRepeatedSingle(const HeadParts& head) {
  for (const std::string_view name : {"authorization", "x-api-key", "content-type",
                                      "content-encoding", "x-request-id", "expect"}) {
    if (Count(head, name) > 1) return true;
  }
  return false;
}

// The comma-separated elements of all fields of this name.
std::vector<std::string_view> Elements(const HeadParts& head, std::string_view name) {
  std::vector<std::string_view> elements;
  for (const auto& [field, value] : head.fields) {
    if (!EqualsIgnoringCase(field, name)) continue;
    for (std::string_view rest = value; !rest.empty();) {
      const size_t comma = std::min(rest.find(','), rest.size());
      elements.push_back(Trimmed(rest.substr(0, comma)));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return elements;
}

bool IsTokenList(const HeadParts& head, std::string_view name) {
  const auto elements = Elements(head, name);
  return std::ranges::all_of(elements, [](auto e) { return e.empty() || IsToken(e); });
}

bool EndsInChunked(const HeadParts& head) {
  const auto codings = Elements(head, "transfer-encoding");
  return !codings.empty() && EqualsIgnoringCase(codings.back(), "chunked");
}

// Counted on the line and not on the target, so that a line cut anywhere is refused or served
// alike.
bool IsRequestLineTooLong(std::string_view raw, const HttpLimits& limits) {
  return std::min(raw.find('\r'), raw.size()) > limits.max_target_bytes + kMethodAndVersionBytes;
}

struct HeadRule {
  int status;
  const char* reason;
  bool (*broken)(const HeadParts& head, const HttpLimits& limits);
};

constexpr char kBareLineEnd[] = "a line of the head does not end in CRLF";
constexpr char kControl[] = "the head holds a control character";
constexpr char kBadRequestLine[] = "the request line is malformed";

// Applied in this order; the first broken rule gives the answer.
constexpr HeadRule kHeadRules[] = {
    {505, "only HTTP/1.0 and HTTP/1.1 are supported",
     [](const HeadParts& h, const HttpLimits&) {
       return h.version != "HTTP/1.0" && h.version != "HTTP/1.1";
     }},
    {414, "the request target is too long",
     [](const HeadParts& h, const HttpLimits& l) { return h.target.size() > l.max_target_bytes; }},
    {400, "the request target of CONNECT is no host and port",
     [](const HeadParts& h, const HttpLimits&) {
       return h.method == "CONNECT" && (!h.scheme.empty() || h.target.starts_with('/'));
     }},
    {501, "CONNECT is not supported; this server is no proxy",
     [](const HeadParts& h, const HttpLimits&) { return h.method == "CONNECT"; }},
    {400, "the request target is no path, no absolute URL, and not the * of OPTIONS",
     [](const HeadParts& h, const HttpLimits&) { return !IsTarget(h); }},
    {400, "the request target has no valid host",
     [](const HeadParts& h, const HttpLimits&) {
       return !h.scheme.empty() && !IsValidHost(h.authority);
     }},
    {421, "the request target has another scheme than http",
     [](const HeadParts& h, const HttpLimits&) {
       return !h.scheme.empty() && !EqualsIgnoringCase(h.scheme, "http");
     }},
    {431, "too many header fields",
     [](const HeadParts& h, const HttpLimits& l) { return h.fields.size() > l.max_fields; }},
    {400, "exactly one Host field is needed",
     [](const HeadParts& h, const HttpLimits&) {
       return Count(h, "host") > 1 || (!Has(h, "host") && h.version != "HTTP/1.0");
     }},
    {400, "the Host field is malformed",
     [](const HeadParts& h, const HttpLimits&) { return !IsHostField(Value(h, "host")); }},
    {400, "Transfer-Encoding and Content-Length exclude each other",
     [](const HeadParts& h, const HttpLimits&) {
       return Has(h, "transfer-encoding") && Has(h, "content-length");
     }},
    {400, "Transfer-Encoding needs HTTP/1.1",
     [](const HeadParts& h, const HttpLimits&) {
       return Has(h, "transfer-encoding") && h.version == "HTTP/1.0";
     }},
    {400, "the last coding of Transfer-Encoding is not chunked",
     [](const HeadParts& h, const HttpLimits&) {
       return Has(h, "transfer-encoding") && !EndsInChunked(h);
     }},
    {501, "only the Transfer-Encoding chunked is supported",
     [](const HeadParts& h, const HttpLimits&) {
       return Has(h, "transfer-encoding") &&
              (Count(h, "transfer-encoding") > 1 ||
               !EqualsIgnoringCase(Value(h, "transfer-encoding"), "chunked"));
     }},
    {400, "exactly one Content-Length is needed, in digits",
     [](const HeadParts& h, const HttpLimits&) {
       return Has(h, "content-length") &&
              (Count(h, "content-length") > 1 || !IsLength(Value(h, "content-length")));
     }},
    {400, "a field that may occur once is repeated",
     [](const HeadParts& h, const HttpLimits&) { return IsRepeatedSingle(h); }},
    {417, "the only expectation supported is 100-continue",
     [](const HeadParts& h, const HttpLimits&) {
       return Has(h, "expect") && !EqualsIgnoringCase(Value(h, "expect"), "100-continue");
     }},
    {400, "a Connection field is no list of names",
     [](const HeadParts& h, const HttpLimits&) {
       return !IsTokenList(h, "connection") || !IsTokenList(h, "proxy-connection");
     }},
};

// Splits a head whose lines are whole.
std::optional<HttpRefusal> Split(std::string_view raw, HeadParts* parts) {
  if (HasBareLineEnd(raw)) return HttpRefusal{400, kBareLineEnd};
  if (HasControl(raw)) return HttpRefusal{400, kControl};
  const auto lines = Lines(raw);
  const auto is_folded = [](std::string_view line) { return line[0] == ' ' || line[0] == '\t'; };
  if (std::ranges::any_of(lines, is_folded))
    return HttpRefusal{400, "a field is folded over two lines"};
  if (lines.empty() || !SplitRequestLine(lines.front(), parts))
    return HttpRefusal{400, kBadRequestLine};
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::optional<FieldView> field = SplitField(lines[i]);
    if (!field) return HttpRefusal{400, "a field name is malformed or followed by white space"};
    parts->fields.push_back(*field);
  }
  return std::nullopt;
}

bool KeepAlive(const HeadParts& parts) {
  bool keep_alive = parts.version == "HTTP/1.1";
  for (const std::string_view option : Elements(parts, "connection")) {
    if (EqualsIgnoringCase(option, "close")) return false;
    if (EqualsIgnoringCase(option, "keep-alive")) keep_alive = true;
  }
  return keep_alive;
}

HttpHead HeadOf(const HeadParts& parts) {
  HttpHead head;
  head.method = parts.method;
  const size_t question = std::min(parts.path.find('?'), parts.path.size());
  head.path = parts.path.substr(0, question);
  head.query = parts.path.substr(std::min(question + 1, parts.path.size()));
  if (head.path.empty() && !parts.scheme.empty())
    head.path = parts.method == "OPTIONS" && parts.path.empty() ? "*" : "/";
  head.host = parts.scheme.empty() ? Value(parts, "host") : parts.authority;
  for (const auto& [name, value] : parts.fields)
    head.fields.emplace_back(LowerCase(name), std::string(value));
  return head;
}

}  // namespace

HttpRefusal BodyTooLarge(std::string_view found, size_t max_bytes) {
  return {413, RefusalText(found, "at most " + std::to_string(max_bytes) + " (--max-body-size)")};
}

HttpHead ReadableHead(std::string_view bytes) {
  HeadParts parts;
  bool is_request_line = true;
  for (const std::string_view line : Lines(bytes)) {
    const std::string_view with_end(line.data(), line.size() + 2);
    const bool clean = !HasBareLineEnd(with_end) && !HasControl(line);
    if (std::exchange(is_request_line, false)) {
      if (clean) SplitRequestLine(line, &parts);
    } else if (const auto field = SplitField(line); clean && field) {
      parts.fields.push_back(*field);
    }
  }
  return HeadOf(parts);
}

std::variant<HttpHead, HttpRefusal> CheckHead(std::string_view raw, const HttpLimits& limits) {
  if (IsRequestLineTooLong(raw, limits)) return HttpRefusal{414, "the request line is too long"};
  if (raw.size() > limits.max_head_bytes) return HttpRefusal{431, "the head is too large"};
  HeadParts parts;
  if (const auto refusal = Split(raw, &parts)) return *refusal;
  for (const HeadRule& rule : kHeadRules) {
    if (rule.broken(parts, limits)) return HttpRefusal{rule.status, rule.reason};
  }
  HttpHead head = HeadOf(parts);
  head.minor_version = parts.version == "HTTP/1.1" ? 1 : 0;
  head.keep_alive = KeepAlive(parts);
  head.expects_continue = Has(parts, "expect") && head.minor_version == 1;
  head.chunked = Has(parts, "transfer-encoding");
  if (Has(parts, "content-length"))
    head.content_length = std::stoull(std::string(Value(parts, "content-length")));
  if (head.content_length > limits.max_body_bytes) {
    return BodyTooLarge("the body has " + std::to_string(head.content_length) + " bytes",
                        limits.max_body_bytes);
  }
  return head;
}

std::optional<HttpRefusal> CheckPartialHead(std::string_view bytes, size_t begin,
                                            const HttpLimits& limits) {
  if (bytes.empty()) return std::nullopt;
  if (!IsTokenChar(bytes.front())) return HttpRefusal{400, kBadRequestLine};
  const std::string_view unchecked = bytes.substr(begin > 0 ? begin - 1 : 0);
  // A LF at the start can only be the second half of a line end that is checked already.
  if (HasBareLineEnd(unchecked.front() == '\n' ? unchecked.substr(1) : unchecked))
    return HttpRefusal{400, kBareLineEnd};
  if (HasControl(unchecked)) return HttpRefusal{400, kControl};
  if (IsRequestLineTooLong(bytes, limits)) return HttpRefusal{414, "the request line is too long"};
  if (bytes.size() > limits.max_head_bytes) return HttpRefusal{431, "the head is too large"};
  return std::nullopt;
}

bool IsLoopbackHost(std::string_view host) {
  if (host.substr(0, 5) == "[::1]") return true;
  const std::string_view name = host.substr(0, host.find(':'));
  if (EqualsIgnoringCase(name, "localhost")) return true;
  const bool numeric = std::all_of(name.begin(), name.end(),
                                   [](char c) { return IsDigit(c) || c == '.'; });
  return numeric && name.substr(0, 4) == "127.";
}

}  // namespace diffserve
