// SPDX-License-Identifier: Apache-2.0
#include "server/ui/files.h"

#include <string>

namespace diffserve {
namespace {

constexpr std::string_view kFolder = "/ui/", kIndex = "index.html";
// The page runs only its own scripts and styles, connects only to its own server, and cannot be
// framed.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string ContentTypeOf(std::string_view name) {
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/html; charset=utf-8";
}

}  // namespace

std::optional<HttpReply> UiReply(std::string_view path) {
  std::string_view name = kIndex;
  if (path != "/") {
    if (!path.starts_with(kFolder)) return std::nullopt;
    name = path.substr(kFolder.size());
    if (name == kIndex) return std::nullopt;  // its links are relative to "/"
  }
  for (const UiFile& file : UiFiles()) {
    if (file.name != name) continue;
    HttpReply reply;
    reply.content_type = ContentTypeOf(name);
    reply.fields = {{"Content-Security-Policy", kPolicy},
                    {"X-Content-Type-Options", "nosniff"},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cache-Control", "no-cache"}};
    reply.body = file.bytes;
    return reply;
  }
  return std::nullopt;
}

}  // namespace diffserve
