// SPDX-License-Identifier: Apache-2.0
// The Hadamard transform that is applied to 4-bit numbers before they are stored. It spreads a
// channel that is larger than the others over all, so that one step size serves each. It is
// orthonormal and symmetric: it keeps dot products and is its own inverse.
#pragma once

#include "kernels/base/host_device.h"

namespace diffserve {

inline constexpr int kMaxTransform = 1024;  // maximum numbers per row

// One pass: sums and differences of neighbours, into the two halves of `to`.
template <typename T>
DIFFSERVE_HOST_DEVICE void HadamardPass(const T* __restrict from, T* __restrict to, int half) {
  for (int i = 0; i < half; ++i) {
    to[i] = from[2 * i] + from[2 * i + 1];
    to[half + i] = from[2 * i] - from[2 * i + 1];
  }
}

// In place, for each block of a row. A block has as many numbers as the largest power of 2 that
// divides `count`; `scratch` has room for one. Additions, then one product: each number has one
// fixed chain.
template <typename T>
DIFFSERVE_HOST_DEVICE void Hadamard(T* row, int count, T* scratch) {
  const int block = count & -count;
  const T factor = static_cast<T>(1 / __builtin_sqrt(static_cast<double>(block)));
  for (T* begin = row; begin < row + count; begin += block) {
    T* from = begin;
    T* to = scratch;
    for (int pass = 1; pass < block; pass *= 2) {
      HadamardPass(from, to, block / 2);
      T* other = from;
      from = to;
      to = other;
    }
    for (int i = 0; i < block; ++i) begin[i] = from[i] * factor;
  }
}

}  // namespace diffserve
