// SPDX-License-Identifier: Apache-2.0
// The benchmark's own kernels. All pointers are device memory; launchers return a cudaError_t.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/kv_format.h"

struct CUstream_st;

namespace diffserve::bench {

// Does nothing, in one thread block.
int LaunchNothing(CUstream_st* stream);

// bf16 in [-1, 1): the columns [first_column, + width) of a random matrix of unbounded width.
int FillRandom(uint16_t* values, size_t num_tokens, int width, int first_column,
               CUstream_st* stream);

// Fills whole pages: K of map m gets the numbers of K map (first_map + m), V the numbers from
// column first_v_column on of a V that is wider, so that pages of other layouts can hold the same K
// and V.
struct PageContent {
  PagedKv layer;
  int64_t num_pages = 0;  // times groups
  int first_map = 0;
  int first_v_column = 0;
};
int FillPages(const PageContent& content, CUstream_st* stream);

// Fetches whole pages into shared memory as decode attention does, and does nothing with them: each
// thread block every gridDim-th of `pages`, with `num_stages` bulk copies in flight (sm_90).
struct PageReads {
  const std::byte* base = nullptr;
  const int32_t* pages = nullptr;  // [num_pages]
  int num_pages = 0;
  uint32_t page_bytes = 0;
  int num_stages = 1;
};
int ReadPages(const PageReads& reads, int num_thread_blocks, CUstream_st* stream);

}  // namespace diffserve::bench
