// SPDX-License-Identifier: Apache-2.0
// Magnitudes: statistics of absolute values. The largest are exact. Quantiles come from a histogram
// with 256 bins per octave, so they are within 0.2 %. The order of additions and merges does not
// change the figures.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace diffserve {

class Magnitudes {
 public:
  static constexpr int kTop = 100;

  void Add(std::span<const float> values);
  void Merge(const Magnitudes& other);

  int64_t count() const { return count_; }
  int64_t num_not_finite() const { return num_not_finite_; }
  // The `rank`th largest, rank 1 .. kTop; NaN if there are fewer.
  float Top(int rank) const;
  // The smallest magnitude that `share` of all values do not exceed, as the middle of its bin; 0
  // below 2^-40. NaN if there are no values.
  double Quantile(double share) const;

 private:
  // Exponents, as a float stores them, from kLowest on. Smaller values count as 0, larger ones as
  // the last bin.
  static constexpr int kLowest = 127 - 40, kOctaves = 80, kBinBits = 8;

  void AddToTop(float magnitude);

  int64_t count_ = 0;           // finite values
  int64_t num_not_finite_ = 0;  // excluded from all other figures
  int64_t num_zero_ = 0;
  std::vector<float> top_;                                // a heap, smallest first
  std::array<std::vector<int64_t>, kOctaves> octaves_{};  // [octave][bin]; empty: no value there
};

}  // namespace diffserve
