// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/row_cost.h"

#include <algorithm>
#include <vector>

namespace diffserve {
namespace {

// What was measured a few hundred steps ago hardly counts: a size that seemed too expensive is
// tried again, and longer texts make all steps slower.
constexpr double kDecay = 1 - 1.0 / 256;
// The expected cost of a size counts like as many steps.
constexpr double kExpectedSteps = 4;
// A single step counts at most as this multiple of what is expected of it: the system may have
// interrupted it.
constexpr double kSecondsMax = 1.5;

// Neighbouring sizes, from `first` on, that have one mean.
struct Pool {
  double steps = 0, seconds = 0;
  size_t first = 0;
  double mean() const { return seconds / steps; }
};

}  // namespace

void RowCostMeter::Take(int rows, double seconds) {
  const auto index = static_cast<size_t>(rows);
  if (index > kPricedRowsMax) return;
  if (const std::optional<RowCosts> expected = costs())
    seconds = std::min(seconds, kSecondsMax * (*expected)[index]);
  for (Measured& measured : by_rows_)
    measured = {kDecay * measured.steps, kDecay * measured.seconds};
  by_rows_[index].steps += 1;
  by_rows_[index].seconds += seconds;
}

std::optional<RowCosts> RowCostMeter::costs() const {
  // The size that was measured most says what is expected of the others.
  const auto most = std::ranges::max_element(by_rows_, {}, &Measured::steps);
  if (most->steps == 0) return std::nullopt;
  const auto known = static_cast<double>(most - by_rows_.begin());
  const double one = most->seconds / most->steps / (1 + kUnknownRow * (known - 1));
  RowCosts costs{};
  std::vector<Pool> pools;
  for (size_t rows = 1; rows <= kPricedRowsMax; ++rows) {
    const Measured& measured = by_rows_[rows];
    const double expected = rows == 1 ? one : costs[rows - 1] + kUnknownRow * one;
    Pool pool = {.steps = measured.steps + kExpectedSteps,
                 .seconds = measured.seconds + kExpectedSteps * expected,
                 .first = rows};
    costs[rows] = pool.mean();
    // More rows never cost less: sizes that seem to are given one mean.
    while (!pools.empty() && pools.back().mean() > pool.mean()) {
      pool = {.steps = pools.back().steps + pool.steps,
              .seconds = pools.back().seconds + pool.seconds,
              .first = pools.back().first};
      pools.pop_back();
    }
    pools.push_back(pool);
  }
  for (const Pool& pool : pools)
    std::fill(costs.begin() + static_cast<std::ptrdiff_t>(pool.first), costs.end(), pool.mean());
  return costs;
}

}  // namespace diffserve
