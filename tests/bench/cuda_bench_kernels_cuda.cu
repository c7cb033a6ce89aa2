// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/base/cuda/ptx.cuh"
#include "tests/bench/cuda_bench_kernels.h"

namespace diffserve::bench {
namespace {

constexpr int kFillThreads = 256;

__global__ void NothingKernel() {}

// A number in [-1, 1) of a multiple of 2^-7, which bf16 holds exactly.
__device__ __forceinline__ uint16_t HashedBFloat16(uint64_t key) {
  key = (key ^ key >> 31) * 0x9e3779b97f4a7c15ull;
  key = (key ^ key >> 29) * 0xbf58476d1ce4e5b9ull;
  const float value = static_cast<float>(static_cast<int>(key >> 56) - 128) * (1.0f / 128);
  return static_cast<uint16_t>(cuda::PackBFloat16(value, 0.0f));
}

__global__ void __launch_bounds__(kFillThreads)
    FillRandomKernel(uint16_t* values, int64_t count, int width, int first_column) {
  for (int64_t i = int64_t{blockIdx.x} * kFillThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kFillThreads) {
    values[i] = HashedBFloat16(static_cast<uint64_t>(i / width) << 20 |
                               static_cast<uint64_t>(i % width + first_column));
  }
}

// One thread block a page.
__global__ void __launch_bounds__(kFillThreads) FillPagesKernel(PageContent content) {
  const KvFormat image = content.layer.format.As<BFloat16Codec, KvArrangement::kImage>();
  const int k_columns = image.k_maps * image.head_dim;
  const int columns = k_columns + image.v_dim;
  for (int64_t page = blockIdx.x; page < content.num_pages; page += gridDim.x) {
    uint16_t* elements = reinterpret_cast<uint16_t*>(content.layer.base + page * image.PageBytes());
    for (int i = static_cast<int>(threadIdx.x); i < image.page_size * columns; i += kFillThreads) {
      const int slot = i / columns, column = i % columns;
      const bool is_v = column >= k_columns;
      const int matrix = is_v ? 7 : content.first_map + column / image.head_dim;
      const int in_matrix = is_v ? content.first_v_column + column - k_columns
                                 : column % image.head_dim;
      const int offset = is_v ? image.VOffset(column - k_columns, slot)
                              : image.KOffset(column / image.head_dim, in_matrix, slot);
      elements[offset] = HashedBFloat16(
          (static_cast<uint64_t>(page) << 20 | static_cast<uint64_t>(slot * 512 + in_matrix)) * 8 +
          static_cast<uint64_t>(matrix));
    }
  }
}

__global__ void __launch_bounds__(32) ReadPagesKernel(PageReads reads) {
  const uint32_t base = cuda::SharedAddress(cuda::DynamicShared());
  const auto num_stages = static_cast<uint32_t>(reads.num_stages);
  const uint32_t barriers = base + num_stages * reads.page_bytes;
  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < num_stages; ++stage)
      cuda::BarrierInit(barriers + 8 * stage, 1);
    cuda::BarrierInitFence();
  }
  __syncwarp();
  if (!cuda::ElectedLane()) return;
  uint32_t stage = 0, parity = 0, in_flight = 0;
  const auto wait = [&] {
    cuda::BarrierWait(barriers + 8 * stage, parity);
    stage = stage + 1 == num_stages ? 0 : stage + 1;
    parity ^= stage == 0 ? 1 : 0;
    --in_flight;
  };
  uint32_t next = 0;
  for (int i = static_cast<int>(blockIdx.x); i < reads.num_pages;
       i += static_cast<int>(gridDim.x)) {
    if (in_flight == num_stages) wait();
    cuda::BarrierArriveExpect(barriers + 8 * next, reads.page_bytes);
    cuda::BulkCopy(base + next * reads.page_bytes,
                   reads.base + int64_t{reads.pages[i]} * reads.page_bytes, reads.page_bytes,
                   barriers + 8 * next);
    next = next + 1 == num_stages ? 0 : next + 1;
    ++in_flight;
  }
  while (in_flight > 0) wait();
}

template <typename... Parameters, typename... Arguments>
int Launch(void (*kernel)(Parameters...), int64_t num_thread_blocks, int num_threads,
           CUstream_st* stream, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_thread_blocks));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

int LaunchNothing(CUstream_st* stream) { return Launch(NothingKernel, 1, 32, stream); }

int FillRandom(uint16_t* values, size_t num_tokens, int width, int first_column,
               CUstream_st* stream) {
  const int64_t count = static_cast<int64_t>(num_tokens) * width;
  const int64_t grid = std::min<int64_t>(4096, (count + kFillThreads - 1) / kFillThreads);
  return Launch(FillRandomKernel, grid, kFillThreads, stream, values, count, width, first_column);
}

int ReadPages(const PageReads& reads, int num_thread_blocks, CUstream_st* stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_thread_blocks));
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = static_cast<size_t>(reads.num_stages) * (reads.page_bytes + 8);
  config.stream = stream;
  const cudaError_t error = cudaFuncSetAttribute(ReadPagesKernel,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(config.dynamicSmemBytes));
  return error != cudaSuccess ? error : cudaLaunchKernelEx(&config, ReadPagesKernel, reads);
}

int FillPages(const PageContent& content, CUstream_st* stream) {
  return Launch(FillPagesKernel, std::min<int64_t>(65536, content.num_pages), kFillThreads, stream,
                content);
}

}  // namespace diffserve::bench
