// SPDX-License-Identifier: Apache-2.0
// DIFFSERVE_HOST_DEVICE marks functions whose source is compiled by the host compilers, once per
// level (simd.h), and by nvcc. They are always inlined: the linker never gets to choose a copy with
// one level's instructions.
#pragma once

#if defined(__CUDACC__)
#define DIFFSERVE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DIFFSERVE_HOST_DEVICE [[gnu::always_inline]] inline
#endif
