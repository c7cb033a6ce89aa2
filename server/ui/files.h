// SPDX-License-Identifier: Apache-2.0
// The page that a person opens: its files, embedded when the program is built (embed.cmake), and
// the replies that serve them. They hold no secret and change only with the program.
// Thread safety: constant.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "server/http/message.h"

namespace diffserve {

struct UiFile {
  std::string_view name;  // "index.html"
  std::string_view bytes;
};

std::span<const UiFile> UiFiles();

// The reply to GET of a path: "/" is index.html, "/ui/NAME" any other file. nullopt: no such file.
std::optional<HttpReply> UiReply(std::string_view path);

}  // namespace diffserve
