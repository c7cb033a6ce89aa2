// SPDX-License-Identifier: Apache-2.0
// CUDA's integer intrinsics on single threads, on the CPU.
#pragma once

#include <bit>

// 1 + the position of the lowest set bit; 0 for 0.
inline int __ffs(int value) {
  return value == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned>(value));
}
