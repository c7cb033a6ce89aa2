// SPDX-License-Identifier: Apache-2.0
// The sampling parameters that are one number: the name in every API, and what is allowed. Readers,
// checks and flags go through this table, so a new number is a member of SamplingParams and a row.
#pragma once

#include <limits>
#include <string_view>

#include "engine/contract/sampling_spec.h"

namespace diffserve {

// A closed range.
struct NumberRange {
  float low = 0;
  float high = 0;
};

// The smallest number above zero, shown as "above 0".
inline constexpr float kAboveZero = std::numeric_limits<float>::denorm_min();

struct SamplingNumber {
  const char* name;
  float SamplingParams::* member;
  NumberRange range;
};

inline constexpr SamplingNumber kSamplingNumbers[] = {
    {"temperature", &SamplingParams::temperature, {0, 100}},
    {"top_p", &SamplingParams::top_p, {kAboveZero, 1}},
    {"min_p", &SamplingParams::min_p, {0, 1}},
    {"presence_penalty", &SamplingParams::presence_penalty, {-2, 2}},
    {"frequency_penalty", &SamplingParams::frequency_penalty, {-2, 2}},
    {"repetition_penalty", &SamplingParams::repetition_penalty, {0.01f, 100}},
};

inline constexpr NumberRange kLogitBiasRange{-100, 100};

// nullptr: no row has the name.
constexpr const SamplingNumber* FindSamplingNumber(std::string_view name) {
  for (const SamplingNumber& number : kSamplingNumbers) {
    if (number.name == name) return &number;
  }
  return nullptr;
}
// REQUIRES: a row has the member.
constexpr NumberRange RangeOf(float SamplingParams::* member) {
  const SamplingNumber* row = kSamplingNumbers;
  while (row->member != member) ++row;
  return row->range;
}

}  // namespace diffserve
