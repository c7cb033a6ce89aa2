// SPDX-License-Identifier: Apache-2.0
// Refusals of wrong input: one sentence per kind, the same for requests, flags and files:
//   FOUND; allowed: ALLOWED
// FOUND begins with the place: a field, a flag, or a file and what in it is wrong. `field` is such
// a name, and also the Status's `param`. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace diffserve {

// The sentence, for a reader that puts the place before it by itself.
std::string RefusalText(std::string_view found, std::string_view allowed);
// The start of a text in quotes, cut between characters.
std::string QuotedText(std::string_view text);
std::string RangeText(int64_t low, int64_t high);  // "1 to 4"

// A refusal of no more special kind.
Status NotAllowed(std::string_view found, std::string_view allowed, std::string param = {});
// n is 0; allowed: 1 to 128
Status OutOfRange(std::string_view field, int64_t value, int64_t low, int64_t high);
// dimensions is 0; allowed: at least 1
Status BelowMin(std::string_view field, int64_t value, int64_t min);
// order is "up"; allowed: asc, desc
Status NotOneOf(std::string_view field, std::string_view found, std::string_view allowed);
// stop has 9 entries; allowed: at most 8
Status TooMany(std::string_view field, size_t count, std::string_view unit, size_t max);
// model is missing
// prompt is missing; allowed: text, token_ids, chat
Status Missing(std::string_view field, std::string_view allowed = {});
// messages is empty; allowed: at least 1 message
Status IsEmpty(std::string_view field, std::string_view allowed);
// top_logprobs is set; allowed: only with logprobs
Status OnlyWith(std::string_view field, std::string_view other);
// input and messages are set; allowed: one of them. The param is `second`.
Status NotBoth(std::string_view first, std::string_view second);

}  // namespace diffserve
