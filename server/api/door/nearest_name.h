// SPDX-License-Identifier: Apache-2.0
// NearestName: the known name that is closest to a mistyped one.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace diffserve {

// The minimum number of insertions, deletions, changes and swaps of neighbours that turn one text
// into the other. No letter is edited twice.
int EditDistance(std::string_view a, std::string_view b);

// The first of the nearest names, if it is within one edit per three letters of `written`; nullopt:
// none is. Leading dashes are ignored.
std::optional<std::string_view> NearestName(std::string_view written,
                                            std::span<const std::string_view> names);

}  // namespace diffserve
