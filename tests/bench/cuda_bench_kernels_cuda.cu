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

int FillPages(const PageContent& content, CUstream_st* stream) {
  return Launch(FillPagesKernel, std::min<int64_t>(65536, content.num_pages), kFillThreads, stream,
                content);
}

}  // namespace diffserve::bench
