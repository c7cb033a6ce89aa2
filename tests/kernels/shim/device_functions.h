// CUDA's integer intrinsics that concern one thread alone, on the CPU.
#pragma once

#include <bit>

// 1 + the place of the lowest bit; 0 for 0.
inline int __ffs(int value) {
  return value == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned>(value));
}
