// SPDX-License-Identifier: Apache-2.0
// Quantisation of attention logits to b bits (arXiv 2410.05258, section 3.7). It acts on the scaled
// scores s of one query (a token, head and map) over the slots that it sees, before an exact
// softmax.
//
//   kRow       a = max |s| over all those slots, n = 2^(b-1) - 1,
//              s' = round_half_even(s n / a) a / n; a = 0: s' = 0
//   kTile      the same, with an a for each run of kLogitTileSlots slots at absolute positions
//   kAnchored  m = 2^b - 1, k = round_half_even(min(max s - s, R) m / R),
//              s' = max s - R k / m, with R = kLogitReach: not absmax, and better at equal bits
//
// None depends on the batch, the chunk or the cache.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/base/host_device.h"

namespace diffserve {

inline constexpr int kLogitTileSlots = 64;
inline constexpr int kLogitReach = 16;  // exp(-16) is 1e-7

enum class LogitScale : uint8_t { kRow, kTile, kAnchored };
inline constexpr LogitScale kLogitScales[] = {LogitScale::kRow, LogitScale::kTile,
                                              LogitScale::kAnchored};
std::string_view NameOf(LogitScale scale);  // row, tile, anchored

struct LogitQuant {
  int bits = 0;  // 2 to 8; 0: logits are not quantised
  LogitScale scale = LogitScale::kRow;

  DIFFSERVE_HOST_DEVICE constexpr bool is_on() const { return bits > 0; }
  // Whether quantising any score of a query needs a property of all of them.
  DIFFSERVE_HOST_DEVICE constexpr bool needs_row() const {
    return is_on() && scale != LogitScale::kTile;
  }
  // n, or m with kAnchored.
  DIFFSERVE_HOST_DEVICE constexpr int levels() const {
    return (1 << (scale == LogitScale::kAnchored ? bits : bits - 1)) - 1;
  }
};

// Quantises in place the logits of one query, slot by slot from `first_slot` on, in double
// precision.
void QuantiseLogitsRef(std::span<double> logits, const LogitQuant& quant, int first_slot = 0);

}  // namespace diffserve
