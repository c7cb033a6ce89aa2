// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "kernels/base/cuda/ptx.cuh"
#include "kernels/base/cuda/wgmma.cuh"
#include "tests/cuda/ptx_cuda.h"

namespace diffserve::testing {
namespace {

using namespace cuda;

constexpr int kWarpgroup = 128;
constexpr int kDepth = 64;           // of B in shared memory
constexpr uint32_t kRowBytes = 128;  // of a swizzled tile

// Copies B's bytes unchanged, and makes them visible to wgmma.
__device__ __forceinline__ uint32_t StageB(const uint16_t* b, int elements) {
  uint16_t* shared = reinterpret_cast<uint16_t*>(DynamicShared());
  for (int i = static_cast<int>(threadIdx.x); i < elements; i += kWarpgroup) shared[i] = b[i];
  ProxyFence();
  __syncthreads();
  return SharedAddress(shared);
}

template <int kWidth, bool kBIsMnMajor>
__global__ void __launch_bounds__(kWarpgroup)
    WgmmaKernel(const uint32_t* a, const uint16_t* b, float* d) {
  const uint32_t base = StageB(b, kDepth * kWidth);
  const uint64_t operand = WgmmaOperand(base, kBIsMnMajor ? kDepth * kRowBytes : 0, 8 * kRowBytes);
  float sums[kWidth / 2];
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) sums[i] = 12345.0f;  // the first product must overwrite it
  uint32_t left[kDepth / 16][4];
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      left[step][i] = a[(step * kWarpgroup + static_cast<int>(threadIdx.x)) * 4 + i];
  }
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    const uint32_t further = static_cast<uint32_t>(step) * (kBIsMnMajor ? 16 * kRowBytes : 32);
    Wgmma<kBIsMnMajor>(sums, left[step], WgmmaAdvance(operand, further), step > 0);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaHold(sums);
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) WgmmaHold(left[step]);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i)
    d[static_cast<int>(threadIdx.x) * (kWidth / 2) + i] = sums[i];
}

// Two bf16 of small integers, computed as P of a softmax is from scores, and different at every
// step.
__device__ __forceinline__ uint32_t WitnessPair(int step, int thread, int i) {
  const uint32_t mixed = WitnessBits(step, thread, i);
  return PackBFloat16(static_cast<float>(mixed & 3), static_cast<float>(mixed >> 2 & 3));
}

template <bool kHolds>
__global__ void __launch_bounds__(kWarpgroup) WgmmaReuseKernel(const uint16_t* b, float* d) {
  const uint64_t operand = WgmmaOperand(StageB(b, kDepth * 64), 0, 8 * kRowBytes);
  const int thread = static_cast<int>(threadIdx.x);
  float sums[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) sums[i] = 0.0f;
  uint32_t left[kWitnessSteps][4];
#pragma unroll
  for (int step = 0; step < kWitnessSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) left[step][i] = WitnessPair(step, thread, i);
    WgmmaFence();
    Wgmma<false>(sums, left[step], operand, true);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaHold(sums);
  if constexpr (kHolds) {
#pragma unroll
    for (int step = 0; step < kWitnessSteps; ++step) WgmmaHold(left[step]);
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) d[thread * 32 + i] = sums[i];
}

template <typename Kernel, typename... Arguments>
int RunWarpgroup(Kernel* kernel, int shared_bytes, CUstream_st* stream, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(kWarpgroup);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <int kWidth>
int RunOfWidth(bool b_is_mn_major, const uint32_t* a, const uint16_t* b, float* d,
               CUstream_st* stream) {
  const auto kernel = b_is_mn_major ? WgmmaKernel<kWidth, true> : WgmmaKernel<kWidth, false>;
  return RunWarpgroup(kernel, 2 * kDepth * kWidth, stream, a, b, d);
}

}  // namespace

int RunWgmma(bool b_is_mn_major, int width, const uint32_t* a, const uint16_t* b, float* d,
             CUstream_st* stream) {
  if (width == 64) return RunOfWidth<64>(b_is_mn_major, a, b, d, stream);
  if (width == 128) return RunOfWidth<128>(b_is_mn_major, a, b, d, stream);
  return RunOfWidth<256>(b_is_mn_major, a, b, d, stream);
}

int RunWgmmaReuse(bool holds, const uint16_t* b, float* d, CUstream_st* stream) {
  return RunWarpgroup(holds ? WgmmaReuseKernel<true> : WgmmaReuseKernel<false>, 2 * kDepth * 64,
                      stream, b, d);
}

}  // namespace diffserve::testing
