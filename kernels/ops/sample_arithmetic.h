// SPDX-License-Identifier: Apache-2.0
// The arithmetic of sampling, bitwise identical on the CPU and the GPU: compiled by the host
// compilers and by nvcc.
//
// Each float operation is rounded separately (nvcc would contract a product and a sum into one
// rounding). Weights become integers, called masses, before they are summed, so a sum has the same
// value in any order.
//
// The order of tokens is z descending, then id ascending, with z = (logit - max) * (1 /
// temperature) <= 0. Each filter keeps all tokens up to some position in that order:
//   top_k   the first top_k tokens;
//   top_p   the fewest first tokens with a mass of at least ceil(share * mass kept by top_k);
//   min_p   z >= log(min_p), as the largest weight is exp(0) = 1.
// A token of mass 0 is never drawn, so its place in the order does not matter.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/base/host_device.h"
#include "kernels/base/rounded.h"
#include "kernels/ops/sample.h"

namespace diffserve {

inline constexpr int kMassBits = 41;  // the mass of weight 1 is 2^kMassBits

// The weight exp(z) of z <= 0 in units of 2^-kMassBits, before it is rounded to an integer.
// Relative error below 2e-7 down to kMinZ; below that, a value that rounds to 0.
inline constexpr float kMinZ = -30;
DIFFSERVE_HOST_DEVICE constexpr float UnroundedMass(float z) {
  const float clamped = z > kMinZ ? z : kMinZ;
  // 1.5 * 2^23: the low bits are the integer
  const float shifted = rounded::Add(rounded::Mul(clamped, 1.44269504f), 12582912.0f);
  const float n = rounded::Sub(shifted, 12582912.0f);
  // ln 2 in two parts
  const float r = rounded::Sub(rounded::Sub(clamped, rounded::Mul(n, 0.693359375f)),
                               rounded::Mul(n, -2.12194440e-4f));
  float p = 8.31252e-3f;
  p = rounded::Add(rounded::Mul(p, r), 4.189016e-2f);
  p = rounded::Add(rounded::Mul(p, r), 1.6667115e-1f);
  p = rounded::Add(rounded::Mul(p, r), 4.9999231e-1f);
  p = rounded::Add(rounded::Mul(p, r), 1.0f);
  p = rounded::Add(rounded::Mul(p, r), 1.0f);
  const int32_t exponent = (__builtin_bit_cast(int32_t, shifted) - 0x4b400000 + 127 + kMassBits)
                           << 23;
  return rounded::Mul(p, __builtin_bit_cast(float, exponent));
}

// Adding kRoundMass leaves an integer, rounded to nearest even, in the low bits of the double.
inline constexpr double kRoundMass = 0x1.8p52;

constexpr uint64_t MassOf(float z) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return __float2ull_rn(UnroundedMass(z));
#endif
  return std::bit_cast<uint64_t>(static_cast<double>(UnroundedMass(z)) + kRoundMass) -
         std::bit_cast<uint64_t>(kRoundMass);
}

// floor(a * b / 2^64).
constexpr uint64_t MulHigh(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}

// The mass that the tokens kept by top_p must reach; at least 1.
constexpr uint64_t MinMass(uint64_t share, uint64_t mass) {
  const uint64_t floor = MulHigh(share, mass);
  const bool exact = share * mass == 0;
  return floor + (exact && floor > 0 ? 0 : 1);
}

// logit_bias, then repetition, frequency and presence penalties, then the ban.
constexpr float AdjustLogit(float logit, const LogitAdjustment& adjustment,
                            const SampleTask& task) {
  if (adjustment.banned) return -std::numeric_limits<float>::infinity();
  logit = rounded::Add(logit, adjustment.bias);
  if (adjustment.count < 0) return logit;
  logit = logit > 0 ? rounded::Div(logit, task.repetition_penalty)
                    : rounded::Mul(logit, task.repetition_penalty);
  logit = rounded::Sub(logit,
                       rounded::Mul(task.frequency_penalty, static_cast<float>(adjustment.count)));
  if (adjustment.count > 0) logit = rounded::Sub(logit, task.presence_penalty);
  // A tiny repetition penalty must not look like a broken model.
  return logit > std::numeric_limits<float>::max() ? std::numeric_limits<float>::max() : logit;
}

}  // namespace diffserve
