// SPDX-License-Identifier: Apache-2.0
// Float operations that are each rounded separately, so that the host and a GPU get the same bits.
// nvcc would contract a product and a sum into one rounding.
#pragma once

#include <type_traits>

#include "kernels/base/host_device.h"

namespace diffserve {

namespace rounded {

DIFFSERVE_HOST_DEVICE constexpr float Add(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return __fadd_rn(a, b);
#endif
  return a + b;
}
DIFFSERVE_HOST_DEVICE constexpr float Sub(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return __fsub_rn(a, b);
#endif
  return a - b;
}
DIFFSERVE_HOST_DEVICE constexpr float Mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return __fmul_rn(a, b);
#endif
  return a * b;
}
constexpr float Div(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return __fdiv_rn(a, b);
#endif
  return a / b;
}

}  // namespace rounded

}  // namespace diffserve
