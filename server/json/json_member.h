// SPDX-License-Identifier: Apache-2.0
// Finds one member of a JSON object without keeping the others, for a program that passes the text
// on unchanged. Thread safety: pure function.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace diffserve {

// The last member of the outermost object with this name, if it is a string. nullopt: there is none
// before the end or the first error of the text.
std::optional<std::string> FindStringMember(std::string_view object, std::string_view name);

}  // namespace diffserve
