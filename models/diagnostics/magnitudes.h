// Magnitudes: of many numbers' absolute values the largest exactly, and quantiles by a histogram
// whose bins are 1/256 of an octave's begin wide, so within 0.2 %. What is added in another order,
// or added elsewhere and merged, gives the same figures.
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
  // The least magnitude that is not exceeded by `share` of all, as the middle of its bin; 0 below
  // 2^-40. NaN if there is none.
  double Quantile(double share) const;

 private:
  // Of the exponents, as a float stores them, from kLowest on; what is smaller counts as 0, what is
  // larger as the last bin.
  static constexpr int kLowest = 127 - 40, kOctaves = 80, kBinBits = 8;

  void AddToTop(float magnitude);

  int64_t count_ = 0;           // that are finite
  int64_t num_not_finite_ = 0;  // left out of all else
  int64_t num_zero_ = 0;
  std::vector<float> top_;                                // a heap, the least of them first
  std::array<std::vector<int64_t>, kOctaves> octaves_{};  // [octave][bin]; empty: no number there
};

}  // namespace diffserve
