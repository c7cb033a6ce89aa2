// SPDX-License-Identifier: Apache-2.0
#include "server/http/reply_text.h"

#include <charconv>
#include <ctime>

namespace diffserve {
namespace {

const char* Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

std::string DateText() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  const size_t size = std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return std::string(text, size);
}

void AppendField(std::string_view name, std::string_view value, std::string* out) {
  *out += name;
  *out += ": ";
  // Values are ours or already checked; this ensures that no line end is sent.
  for (const char c : value) *out += c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
  *out += "\r\n";
}

}  // namespace

std::string ReplyText(const HttpReply& reply, const ReplyFraming& framing) {
  std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " " + Reason(reply.status) +
                     "\r\n";
  AppendField("Date", DateText(), &text);
  const bool has_content = reply.status != 204;  // nor may it say that its length is 0
  if (has_content) AppendField("Content-Type", reply.content_type, &text);
  for (const auto& [name, value] : reply.fields) AppendField(name, value, &text);
  if (has_content && !reply.streams)
    AppendField("Content-Length", std::to_string(reply.body.size()), &text);
  else if (has_content && framing.minor_version == 1)
    AppendField("Transfer-Encoding", "chunked", &text);
  if (!framing.keep_alive)
    AppendField("Connection", "close", &text);
  else if (framing.minor_version == 0)
    AppendField("Connection", "keep-alive", &text);
  text += "\r\n";
  if (!reply.streams && !framing.head_only) text += reply.body;
  return text;
}

void AppendChunk(std::string_view bytes, std::string* out) {
  if (bytes.empty()) return;
  char size[16];
  const auto end = std::to_chars(size, size + sizeof(size), bytes.size(), 16).ptr;
  out->append(size, end);
  *out += "\r\n";
  *out += bytes;
  *out += "\r\n";
}

}  // namespace diffserve
