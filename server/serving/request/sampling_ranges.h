// SPDX-License-Identifier: Apache-2.0
// The ranges of sampling parameters, for requests and flags.
#pragma once

#include <limits>

namespace diffserve {

// A closed range.
struct NumberRange {
  float low = 0;
  float high = 0;
};

// The smallest number above zero, shown as "above 0".
inline constexpr float kAboveZero = std::numeric_limits<float>::denorm_min();

inline constexpr NumberRange kTemperatureRange{0, 100};
inline constexpr NumberRange kTopPRange{kAboveZero, 1};
inline constexpr NumberRange kMinPRange{0, 1};
inline constexpr NumberRange kPenaltyRange{-2, 2};  // presence and frequency
inline constexpr NumberRange kLogitBiasRange{-100, 100};
inline constexpr NumberRange kRepetitionPenaltyRange{0.01f, 100};

}  // namespace diffserve
