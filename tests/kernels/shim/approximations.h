// SPDX-License-Identifier: Apache-2.0
// The functions that a GPU computes only approximately, on the CPU: as wrong as NVIDIA's manuals
// allow, up or down as the argument's bits say. A test that passes with them needs no more than
// what is documented.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace diffserve::shim {

inline bool IsSubnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL; }
// As .ftz does with arguments and results.
inline float Flushed(float x) { return IsSubnormal(x) ? std::copysign(0.0f, x) : x; }

// A number that is more than units - 1 and at most `units` in the last place from the exact one.
inline float Approximately(double exact, float argument, int units) {
  const auto nearest = static_cast<float>(exact);
  if (!std::isfinite(nearest) || nearest == 0) return nearest;
  const bool is_above = (std::bit_cast<uint32_t>(argument) * 0x9e3779b1u >> 31) != 0;
  const float end = std::copysign(std::numeric_limits<float>::infinity(), is_above ? 1.0f : -1.0f);
  float value = nearest;
  if (value == exact || (value > exact) != is_above) value = std::nextafter(value, end);
  for (int i = 1; i < units; ++i) value = std::nextafter(value, end);
  return value;
}

}  // namespace diffserve::shim

// CUDA's mathematical functions: errors from the table in the CUDA C++ programming guide.
inline float rsqrtf(float x) {
  return diffserve::shim::Approximately(1.0 / std::sqrt(double{x}), x, 2);
}

namespace diffserve::cuda {

// These stand before the C library's in the kernels' namespace.
inline float expf(float x) { return x == 0 ? 1 : shim::Approximately(std::exp(double{x}), x, 2); }
inline float log1pf(float x) { return shim::Approximately(std::log1p(double{x}), x, 1); }

}  // namespace diffserve::cuda
