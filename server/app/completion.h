// SPDX-License-Identifier: Apache-2.0
// Shell completion, made from the tables of commands and flags.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace diffserve {

inline constexpr std::string_view kCompletionShells[] = {"bash", "zsh", "fish"};

// A script that completes commands, flags, their values and paths. `shell`: one of
// kCompletionShells.
std::string CompletionScript(std::string_view shell);

}  // namespace diffserve
