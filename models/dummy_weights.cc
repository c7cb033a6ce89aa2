// SPDX-License-Identifier: Apache-2.0
#include "models/dummy_weights.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/tensor.h"
#include "kernels/process/random_bits.h"

namespace diffserve {
namespace {

constexpr size_t kQuantiles = 4096;  // distinct values; the index is 12 bits of a hash
constexpr int kValuesPerHash = 5;    // 5 * 12 of its 64 bits

uint64_t HashName(const std::string& name, uint64_t seed) {
  uint64_t hash = SplitMix64(seed);
  for (char c : name) hash = SplitMix64(hash ^ static_cast<unsigned char>(c));
  return hash;
}

// The standard normal distribution's quantiles at the middles of kQuantiles equal shares, by
// bisection.
std::array<float, kQuantiles> NormalQuantiles() {
  std::array<float, kQuantiles> quantiles;
  for (size_t i = 0; i < kQuantiles; ++i) {
    const double share = (static_cast<double>(i) + 0.5) / kQuantiles;
    double low = -5, high = 5;
    for (int step = 0; step < 40; ++step) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < share ? low : high) = middle;
    }
    quantiles[i] = static_cast<float>(low);
  }
  return quantiles;
}

// Elements [begin, end) of a tensor that starts at `out`. REQUIRES: kValuesPerHash divides begin.
template <typename T>
void FillRandom(uint64_t key, const std::array<T, kQuantiles>& values, int64_t begin, int64_t end,
                T* out) {
  int64_t i = begin;
  for (auto counter = static_cast<uint64_t>(begin / kValuesPerHash); i < end; ++counter) {
    uint64_t bits = SplitMix64(key + counter);
    for (int k = 0; k < kValuesPerHash && i < end; ++k, ++i, bits >>= 12)
      out[i] = values[bits % kQuantiles];
  }
}

template <typename T>
void FillRandom(uint64_t key, const std::array<T, kQuantiles>& values, int64_t count, T* out,
                ThreadPool* pool) {
  constexpr int64_t kPiece = int64_t{kValuesPerHash} << 16;
  const auto fill = [&](int begin, int end) {
    FillRandom(key, values, begin * kPiece, std::min(end * kPiece, count), out);
  };
  const int pieces = static_cast<int>((count + kPiece - 1) / kPiece);
  if (pool == nullptr) return fill(0, pieces);
  RunShares(*pool, pieces, /*worth_waking=*/pieces > 1, fill);
}

}  // namespace

void FillDummyTensor(const std::string& name, uint64_t seed, DType dtype, int64_t count,
                     std::byte* out, ThreadPool* pool) {
  static const std::array<float, kQuantiles> kNormal = NormalQuantiles();
  const bool is_norm = name.find("norm.weight") != std::string::npos;
  const float deviation = name.find("lambda_") != std::string::npos ? 0.1f : 0.02f;
  std::array<float, kQuantiles> values;
  for (size_t i = 0; i < kQuantiles; ++i) values[i] = is_norm ? 1.0f : deviation * kNormal[i];
  const uint64_t key = HashName(name, seed);
  if (dtype == DType::kFloat32) {
    FillRandom(key, values, count, reinterpret_cast<float*>(out), pool);
    return;
  }
  std::array<uint16_t, kQuantiles> halves;
  CopyFromFloat(values, dtype, halves.data());
  FillRandom(key, halves, count, reinterpret_cast<uint16_t*>(out), pool);
}

}  // namespace diffserve
