// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "kernels/base/cuda/ptx.cuh"
#include "tests/cuda/ptx_cuda.h"

namespace diffserve::testing {
namespace {

using namespace cuda;

template <bool kTransposed>
__global__ void __launch_bounds__(32)
    LdMatrixKernel(const uint16_t* matrices, uint32_t* fragments) {
  uint16_t* shared = reinterpret_cast<uint16_t*>(DynamicShared());
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) shared[i] = matrices[i];
  __syncwarp();
  uint32_t result[4];
  if constexpr (kTransposed) {
    LdMatrix4Transposed(result, SharedAddress(shared + lane * 8));
  } else {
    LdMatrix4(result, SharedAddress(shared + lane * 8));
  }
  for (int i = 0; i < 4; ++i) fragments[lane * 4 + i] = result[i];
}

__global__ void __launch_bounds__(32) TransposeMatrixKernel(const uint32_t* from, uint32_t* to) {
  to[threadIdx.x] = TransposeMatrix(from[threadIdx.x]);
}

__global__ void __launch_bounds__(32) MmaKernel(const uint32_t* a, const uint32_t* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x);
  float sums[4];
  uint32_t left[4];
  for (int i = 0; i < 4; ++i) {
    sums[i] = c[lane * 4 + i];
    left[i] = a[lane * 4 + i];
  }
  MmaBFloat16(sums, left, b[lane * 2], b[lane * 2 + 1]);
  for (int i = 0; i < 4; ++i) c[lane * 4 + i] = sums[i];
}

template <bool kTurned>
__global__ void __launch_bounds__(32)
    MmaInt8Kernel(const uint32_t* a, const uint32_t* b, int32_t* c) {
  const int lane = static_cast<int>(threadIdx.x);
  int32_t sums[4];
  uint32_t left[4];
  for (int i = 0; i < 4; ++i) {
    sums[i] = c[lane * 4 + i];
    left[i] = a[lane * 4 + i];
  }
  if constexpr (kTurned) {
    MmaInt8Turned(sums, left, b[lane * 2], b[lane * 2 + 1]);
  } else {
    MmaInt8(sums, left, b[lane * 2], b[lane * 2 + 1]);
  }
  for (int i = 0; i < 4; ++i) c[lane * 4 + i] = sums[i];
}

__global__ void __launch_bounds__(32) CpAsyncKernel(const uint32_t* from, uint32_t* to) {
  const uint32_t* shared = reinterpret_cast<const uint32_t*>(DynamicShared());
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t base = SharedAddress(DynamicShared());
  for (int group = 0; group < 2; ++group) {
    CpAsync16(base + static_cast<uint32_t>((group * 32 + 31 - lane) * 16),
              from + (group * 32 + lane) * 4);
    CpAsyncCommit();
  }
  CpAsyncWait<1>();
  __syncwarp();
  for (int i = lane; i < 128; i += 32) to[i] = shared[i];
  CpAsyncWait<0>();
  __syncwarp();
  for (int i = 128 + lane; i < 256; i += 32) to[i] = shared[i];
}

constexpr int kBulkBytes = 4096;

__global__ void __launch_bounds__(64) BulkCopyKernel(const uint32_t* from, uint32_t* to) {
  uint32_t* shared = reinterpret_cast<uint32_t*>(DynamicShared());
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t base = SharedAddress(shared);
  const uint32_t barrier = base + kBulkBytes, read_by_all = barrier + 8;
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  if (thread == 0) {
    BarrierInit(barrier, 1);
    BarrierInit(read_by_all, 64);
    BarrierInitFence();
  }
  __syncthreads();
  for (uint32_t phase = 0; phase < 2; ++phase) {
    if (warp == 0 && ElectedLane()) {
      const uint32_t* source = from + phase * kBulkBytes / 4;
      if (phase > 0) BarrierWait(read_by_all, 0);
      BarrierArriveExpect(barrier, kBulkBytes);
      BulkCopy(base + 1024, source + 256, kBulkBytes - 1024, barrier);
      BulkCopy(base, source, 1024, barrier);
    }
    BarrierWait(barrier, phase);
    for (int i = thread; i < kBulkBytes / 4; i += 64) {
      to[phase * kBulkBytes / 4 + static_cast<uint32_t>(i)] = shared[i];
      shared[i] = 0;  // the next copies must overwrite this
    }
    ProxyFence();
    BarrierArrive(read_by_all);
  }
}

__global__ void __launch_bounds__(64) SharedAccessKernel(const uint32_t* from, uint32_t* to) {
  const int thread = ThreadAgain();
  const uint32_t base = SharedAddress(DynamicShared());
  const uint32_t own = base + static_cast<uint32_t>(thread) * 16;
  const uint32_t other = base + static_cast<uint32_t>(thread ^ 1) * 16;
  uint32_t numbers[4];
  for (int i = 0; i < 4; ++i) numbers[i] = from[4 * thread + i];
  StoreShared4(own, numbers);
  __syncthreads();
  uint32_t pair[2];
  LoadShared2(pair, other + 8);
  for (int i = 0; i < 2; ++i) to[4 * thread + i] = pair[i];
  StoreShared(own + 4, LoadShared(own));
  __syncthreads();
  LoadShared2(pair, other);
  for (int i = 0; i < 2; ++i) to[4 * thread + 2 + i] = pair[i];
}

__global__ void __launch_bounds__(64) ElectedLaneKernel(uint32_t* to) {
  for (unsigned turn = 0; turn < 2; ++turn) to[64 * turn + threadIdx.x] = ElectedLane() ? 1 : 0;
}

__global__ void __launch_bounds__(96) NamedBarrierKernel(const uint32_t* from, uint32_t* to) {
  uint32_t* shared = reinterpret_cast<uint32_t*>(DynamicShared());
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (warp == 0) shared[lane] = from[lane];
  if (warp != 1) NamedBarrier(5, 64);
  if (warp == 2) to[lane] = shared[lane];
}

__global__ void __launch_bounds__(64)
    ScalarsKernel(const float* x, float* exponentials, float* reciprocals, uint32_t* pairs) {
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  exponentials[i] = Exp2(x[i]);
  reciprocals[i] = Reciprocal(x[i]);
  pairs[i] = PackBFloat16(x[i], x[i ^ 1]);
}

__global__ void __launch_bounds__(64)
    MulRoundedKernel(const float* x, const float* y, const float* z, float* sums) {
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  sums[i] = MulRounded(x[i], y[i]) + z[i];
}

__global__ void __launch_bounds__(64)
    FmaBFloat16Kernel(const uint32_t* x, const uint32_t* y, const uint32_t* z, uint32_t* sums) {
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  sums[i] = FmaBFloat16(x[i], y[i], z[i]);
}

__global__ void __launch_bounds__(64)
    PackFp8E4M3Kernel(const float* x, const float* y, uint32_t* codes) {
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  codes[i] = PackFp8E4M3(x[i], y[i]);
}

__global__ void __launch_bounds__(64)
    AndOrXorKernel(const uint32_t* x, MaskAndBits constants, uint32_t* ors, uint32_t* xors) {
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  ors[i] = AndOr(x[i], constants.mask, constants.bits);
  xors[i] = AndXor(x[i], constants.mask, constants.bits);
}

template <typename Kernel, typename... Arguments>
int RunOnce(Kernel* kernel, int num_thread_blocks, int num_threads, CUstream_st* stream,
            Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_thread_blocks));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.dynamicSmemBytes = 2 * kBulkBytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

int RunLdMatrix(bool transposed, const uint16_t* matrices, uint32_t* fragments,
                CUstream_st* stream) {
  return RunOnce(transposed ? LdMatrixKernel<true> : LdMatrixKernel<false>, 1, 32, stream, matrices,
                 fragments);
}
int RunMma(const uint32_t* a, const uint32_t* b, float* c, CUstream_st* stream) {
  return RunOnce(MmaKernel, 1, 32, stream, a, b, c);
}
int RunMmaInt8(bool turned, const uint32_t* a, const uint32_t* b, int32_t* c, CUstream_st* stream) {
  return RunOnce(turned ? MmaInt8Kernel<true> : MmaInt8Kernel<false>, 1, 32, stream, a, b, c);
}
int RunTransposeMatrix(const uint32_t* from, uint32_t* to, CUstream_st* stream) {
  return RunOnce(TransposeMatrixKernel, 1, 32, stream, from, to);
}
int RunCpAsync(const uint32_t* from, uint32_t* to, CUstream_st* stream) {
  return RunOnce(CpAsyncKernel, 1, 32, stream, from, to);
}
int RunBulkCopy(const uint32_t* from, uint32_t* to, CUstream_st* stream) {
  return RunOnce(BulkCopyKernel, 1, 64, stream, from, to);
}
int RunSharedAccess(const uint32_t* from, uint32_t* to, CUstream_st* stream) {
  return RunOnce(SharedAccessKernel, 1, 64, stream, from, to);
}
int RunElectedLane(uint32_t* to, CUstream_st* stream) {
  return RunOnce(ElectedLaneKernel, 1, 64, stream, to);
}
int RunNamedBarrier(const uint32_t* from, uint32_t* to, CUstream_st* stream) {
  return RunOnce(NamedBarrierKernel, 1, 96, stream, from, to);
}
int RunScalars(const float* x, float* exponentials, float* reciprocals, uint32_t* pairs, int count,
               CUstream_st* stream) {
  return RunOnce(ScalarsKernel, count / 64, 64, stream, x, exponentials, reciprocals, pairs);
}
int RunMulRounded(const float* x, const float* y, const float* z, float* sums, int count,
                  CUstream_st* stream) {
  return RunOnce(MulRoundedKernel, count / 64, 64, stream, x, y, z, sums);
}
int RunFmaBFloat16(const uint32_t* x, const uint32_t* y, const uint32_t* z, uint32_t* sums,
                   int count, CUstream_st* stream) {
  return RunOnce(FmaBFloat16Kernel, count / 64, 64, stream, x, y, z, sums);
}
int RunPackFp8E4M3(const float* x, const float* y, uint32_t* codes, int count,
                   CUstream_st* stream) {
  return RunOnce(PackFp8E4M3Kernel, count / 64, 64, stream, x, y, codes);
}
int RunAndOrXor(const uint32_t* x, MaskAndBits constants, uint32_t* ors, uint32_t* xors, int count,
                CUstream_st* stream) {
  return RunOnce(AndOrXorKernel, count / 64, 64, stream, x, constants, ors, xors);
}

}  // namespace diffserve::testing
