// SPDX-License-Identifier: Apache-2.0
#include "models/diagnostics/magnitudes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/process/check.h"

namespace diffserve {

void Magnitudes::Add(std::span<const float> values) {
  constexpr uint32_t kNotFinite = 0x7f800000;
  constexpr int kMantissaBits = 23, kBins = 1 << kBinBits;
  for (float value : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffff;
    if (bits >= kNotFinite) {
      ++num_not_finite_;
      continue;
    }
    ++count_;
    const int octave = static_cast<int>(bits >> kMantissaBits) - kLowest;
    if (octave < 0) {
      ++num_zero_;
    } else {
      std::vector<int64_t>& bins = octaves_[static_cast<size_t>(std::min(octave, kOctaves - 1))];
      if (bins.empty()) bins.resize(kBins);
      ++bins[octave < kOctaves ? bits >> (kMantissaBits - kBinBits) & (kBins - 1) : kBins - 1];
    }
    const float magnitude = std::bit_cast<float>(bits);
    if (top_.size() < kTop || magnitude > top_.front()) AddToTop(magnitude);
  }
}

void Magnitudes::AddToTop(float magnitude) {
  if (top_.size() == kTop) {
    std::ranges::pop_heap(top_, std::greater());
    top_.pop_back();
  }
  top_.push_back(magnitude);
  std::ranges::push_heap(top_, std::greater());
}

void Magnitudes::Merge(const Magnitudes& other) {
  count_ += other.count_;
  num_not_finite_ += other.num_not_finite_;
  num_zero_ += other.num_zero_;
  for (size_t octave = 0; octave < octaves_.size(); ++octave) {
    const std::vector<int64_t>& bins = other.octaves_[octave];
    if (octaves_[octave].size() < bins.size()) octaves_[octave].resize(bins.size());
    for (size_t bin = 0; bin < bins.size(); ++bin) octaves_[octave][bin] += bins[bin];
  }
  for (float magnitude : other.top_) {
    if (top_.size() < kTop || magnitude > top_.front()) AddToTop(magnitude);
  }
}

float Magnitudes::Top(int rank) const {
  DS_CHECK(rank >= 1 && rank <= kTop, "a rank of 1 .. kTop");
  if (top_.size() < static_cast<size_t>(rank)) return std::numeric_limits<float>::quiet_NaN();
  std::vector<float> sorted = top_;
  std::ranges::nth_element(sorted, sorted.begin() + rank - 1, std::greater());
  return sorted[static_cast<size_t>(rank - 1)];
}

double Magnitudes::Quantile(double share) const {
  if (count_ == 0) return std::numeric_limits<double>::quiet_NaN();
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(count_)));
  int64_t seen = num_zero_;
  for (int octave = 0; octave < kOctaves && seen < rank; ++octave) {
    const std::vector<int64_t>& bins = octaves_[static_cast<size_t>(octave)];
    for (size_t bin = 0; bin < bins.size(); ++bin) {
      if ((seen += bins[bin]) < rank) continue;
      const double middle = 1 + (static_cast<double>(bin) + 0.5) / static_cast<double>(bins.size());
      return std::ldexp(middle, octave + kLowest - 127);
    }
  }
  return 0;
}

}  // namespace diffserve
