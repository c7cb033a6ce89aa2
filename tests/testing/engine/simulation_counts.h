// SPDX-License-Identifier: Apache-2.0
// Counts of the events of a simulation, so that a test can check what its seeds reach.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace diffserve::testing {

struct SimulationCounts {
  uint64_t finished = 0, cancelled = 0, corrupted = 0, refused = 0, launched_ahead = 0,
           results_dropped = 0, drained = 0, lost = 0, overdue = 0, foreseen = 0, shared = 0,
           constrained = 0, refused_by_constraint = 0;

  uint64_t ended() const {
    return finished + cancelled + corrupted + drained + refused_by_constraint;
  }
  SimulationCounts& operator+=(const SimulationCounts& other) {
    static constexpr std::array kAll = {&SimulationCounts::finished,
                                        &SimulationCounts::cancelled,
                                        &SimulationCounts::corrupted,
                                        &SimulationCounts::refused,
                                        &SimulationCounts::launched_ahead,
                                        &SimulationCounts::results_dropped,
                                        &SimulationCounts::drained,
                                        &SimulationCounts::lost,
                                        &SimulationCounts::overdue,
                                        &SimulationCounts::foreseen,
                                        &SimulationCounts::shared,
                                        &SimulationCounts::constrained,
                                        &SimulationCounts::refused_by_constraint};
    static_assert(sizeof(SimulationCounts) == kAll.size() * sizeof(uint64_t));
    for (const auto count : kAll) this->*count += other.*count;
    return *this;
  }
};

}  // namespace diffserve::testing
