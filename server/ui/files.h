// The page that a person opens: its files, embedded when the program is built (embed.cmake), and
// the replies that serve them. They hold no secret and change with the program alone.
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

// What GET of a path gives: "/" is index.html, "/ui/NAME" any other file. nullopt: no such file.
std::optional<HttpReply> UiReply(std::string_view path);

}  // namespace diffserve
