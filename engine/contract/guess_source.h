// SPDX-License-Identifier: Apache-2.0
// GuessSource: where proposed tokens come from. GuessCounts: tokens by source.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace diffserve {

enum class GuessSource { kPrompt, kPrediction, kOutput, kGrammar, kHistory, kDraft };
inline constexpr std::array<const char*, 6> kGuessSourceNames = {"prompt",  "prediction", "output",
                                                                 "grammar", "history",    "draft"};

struct GuessCounts {
  std::array<uint64_t, kGuessSourceNames.size()> by_source{};
  uint64_t& of(GuessSource source) { return by_source[static_cast<size_t>(source)]; }
  uint64_t total() const {
    return std::accumulate(by_source.begin(), by_source.end(), uint64_t{0});
  }
};

}  // namespace diffserve
