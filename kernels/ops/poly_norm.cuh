// SPDX-License-Identifier: Apache-2.0
// The arithmetic of PolyNormMul (rowwise.h), shared by the kernels that compute it: each operation
// is named, so that all give the same bits.
#pragma once

#include <cuda_runtime.h>

#include "kernels/base/rounded.h"

namespace diffserve::cuda {

// Adds z^6, z^4 and z^2 of a gate to their sums.
__device__ __forceinline__ void AddPowers(float z, float (&sums)[3]) {
  const float square = rounded::Mul(z, z), cube = rounded::Mul(square, z);
  sums[0] = fmaf(cube, cube, sums[0]);
  sums[1] = fmaf(square, square, sums[1]);
  sums[2] = rounded::Add(sums[2], square);
}

__device__ __forceinline__ float PolyNormFactor(float weight, float sum, int width, float eps) {
  return weight / sqrtf(sum / static_cast<float>(width) + eps);
}

// The polynomial of a gate times up. `factor`: cubic, square, linear.
__device__ __forceinline__ float PolyNormTimesUp(const float (&factor)[3], float bias, float z,
                                                 float up) {
  const float square = fmaf(factor[0], z, factor[1]), linear = fmaf(square, z, factor[2]);
  return rounded::Mul(fmaf(linear, z, bias), up);
}

}  // namespace diffserve::cuda
