// SPDX-License-Identifier: Apache-2.0
// Sums of products as NVIDIA's tensor cores compute them. NVIDIA does not document it; this is what
// others measured (Fasi et al., PeerJ CS 7:e330; Khattak and Mikaitis, arXiv 2512.07004; Xie et
// al., arXiv 2511.10909, whose models agree bit by bit with A100 and H100).
//
// Products are exact. They and the accumulator are aligned to the largest exponent, and bits below
// `fraction_bits` are cut off. The sum of these is exact, and is cut off to `result_bits` of
// fraction. So errors point to zero, and an accumulator that grows loses on the way.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace diffserve::shim {

// One step of the hardware.
struct TensorCoreStep {
  size_t depth;  // products per sum
  int fraction_bits;
  int result_bits;
  float power_min;  // the smallest normal number of the factors' type; 0: very small
};
// An mma.sync of bf16 numbers on sm_80, of depth 16, is two steps. (On Hopper it is one, with one
// bit more.)
inline constexpr TensorCoreStep kAmpereStep = {8, 24, 23, 0};
// wgmma of bf16 numbers, and of E4M3.
inline constexpr TensorCoreStep kHopperStep = {16, 25, 23, 0};
inline constexpr TensorCoreStep kHopperFp8Step = {32, 13, 13, 0x1p-6f};

inline constexpr size_t kTensorCoreColumns = 4;  // at a time
using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));

// The power of two in x, at least kMin; 0 for 0.
template <float kMin>
Floats PowersOf(Floats x) {
  const auto powers = std::bit_cast<Floats>(std::bit_cast<Words>(x) & 0x7f800000u);
  if constexpr (kMin == 0) return powers;
  return x == 0 ? Floats{} : powers > kMin ? powers : Floats{} + kMin;
}

// sums[i] += a[k] b[k * stride + i] over k < depth, for kTensorCoreColumns. A NaN or an infinity
// gives what float32 arithmetic gives. All that is below 2^-100 is aligned to it.
template <TensorCoreStep kStep>
void AddProducts(const float* a, const float* b, size_t stride, float* sums) {
  const auto load = [](const float* from) { return Floats{from[0], from[1], from[2], from[3]}; };
  const Floats before = load(sums);
  const Floats least = Floats{} + 0x1p-100f;
  Floats largest = PowersOf<0.0f>(before);
  largest = largest > least ? largest : least;
  for (size_t k = 0; k < kStep.depth; ++k) {
    const Floats powers = PowersOf<kStep.power_min>(Floats{} + a[k]) *
                          PowersOf<kStep.power_min>(load(b + k * stride));
    largest = powers > largest ? powers : largest;
  }
  // 2^fraction_bits over the largest.
  constexpr uint32_t kExponents = static_cast<uint32_t>(254 + kStep.fraction_bits) << 23;
  const auto scale = std::bit_cast<Floats>(kExponents - std::bit_cast<Words>(largest));
  Floats plain = before;
  Words units = {};
  for (size_t k = 0; k < kStep.depth; ++k) {
    const Floats products = a[k] * load(b + k * stride);
    plain += products;
    units += std::bit_cast<Words>(__builtin_convertvector(products * scale, Ints));
  }
  const auto aligned = std::bit_cast<Ints>(units);
  const Ints aligned_before = __builtin_convertvector(before * scale, Ints);
  constexpr uint64_t kKept = ~uint64_t{0} << (52 - kStep.result_bits);
  for (size_t i = 0; i < kTensorCoreColumns; ++i) {
    const double all = static_cast<double>(aligned[i]) + static_cast<double>(aligned_before[i]);
    const double kept = std::bit_cast<double>(std::bit_cast<uint64_t>(all) & kKept);
    sums[i] = std::isfinite(plain[i]) ? static_cast<float>(kept / double{scale[i]}) : plain[i];
  }
}

}  // namespace diffserve::shim
