// SPDX-License-Identifier: Apache-2.0
// RowCostMeter: what a step of one to eight rows takes, learned from the latest steps. A step of
// few rows is bound by reading the weights, so on many machines the first rows after one cost
// nothing, and a later one costs much. No clock: the caller supplies elapsed seconds.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "engine/contract/options.h"

namespace diffserve {

inline constexpr size_t kPricedRowsMax = EngineOptions::kVerifiedRowsMax;

// [n]: what a step of n rows costs; ascending. [0] is 0.
using RowCosts = std::array<double, kPricedRowsMax + 1>;

class RowCostMeter {
 public:
  // Where no step has shown it, a further row costs this share of a step with one row. That is
  // little, so sizes are tried.
  static constexpr double kUnknownRow = 1.0 / 32;

  // Steps of more rows are passed over. REQUIRES: rows > 0.
  void Take(int rows, double seconds);
  // In seconds; nullopt until a step was measured.
  std::optional<RowCosts> costs() const;

 private:
  struct Measured {
    double steps = 0, seconds = 0;  // sums; recent steps count most
  };
  std::array<Measured, kPricedRowsMax + 1> by_rows_{};
};

}  // namespace diffserve
