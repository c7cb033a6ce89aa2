// NearestName: the name that somebody may have meant who wrote one that there is not.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace diffserve {

// Insertions, deletions, changes and swaps of neighbours that turn one text into the other, no
// letter of which is touched twice.
int EditDistance(std::string_view a, std::string_view b);

// The first of the nearest names, if it takes at most one edit for each three letters of `written`;
// nullopt: none is near. Leading dashes count for nothing.
std::optional<std::string_view> NearestName(std::string_view written,
                                            std::span<const std::string_view> names);

}  // namespace diffserve
