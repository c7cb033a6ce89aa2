// DIFFSERVE_HOST_DEVICE: for functions whose one text is compiled by the host's compilers, once for
// every level (simd.h) and by nvcc. They are always inlined, so that no copy of one with a level's
// instructions is left for the linker to choose.
#pragma once

#if defined(__CUDACC__)
#define DIFFSERVE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DIFFSERVE_HOST_DEVICE [[gnu::always_inline]] inline
#endif
