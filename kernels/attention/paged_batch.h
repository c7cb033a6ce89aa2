// SPDX-License-Identifier: Apache-2.0
// A batch: the tokens of each sequence, and its pages. SequenceTokens is in host memory. PagedBatch
// has the same in arrays of device memory, which the host fills with one copy per step. Plain data,
// passed to kernels by value.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"

namespace diffserve {

// What one sequence contributes to a batch: its tokens [position, position + num_tokens). After
// them the sequence has position + num_tokens tokens in the cache. pages[i] holds slots [i *
// page_size, (i + 1) * page_size).
struct SequenceTokens {
  int first_row = 0;  // in the batch's row-major activations
  int num_tokens = 0;
  int position = 0;
  const int32_t* pages = nullptr;
  // The pages of layers with a window, if those have their own page ids; nullptr: `pages`. Entries
  // wholly before the windows of these tokens may be -1.
  const int32_t* window_pages = nullptr;
};

namespace cuda {

// The tokens [position, position + num_tokens) of one sequence.
struct DeviceSequence {
  int32_t first_row;
  int32_t num_tokens;  // 0: no tokens
  int32_t position;
  // Index of its first page in PagedBatch::pages; page i holds slots [i * page_size, (i + 1) *
  // page_size).
  int32_t first_page;
  int32_t num_tokens_after = 0;  // of the same sequence in a separate entry that follows this one
};

struct PagedBatch {
  int num_sequences = 0;
  int num_tokens = 0;
  const DeviceSequence* sequences = nullptr;  // [num_sequences]
  // [num_tokens], the index of each token's entry in `sequences`. A token at or after the end of
  // that entry's tokens is padding and belongs to no sequence.
  const int32_t* token_sequences = nullptr;
  const int32_t* pages = nullptr;
};

}  // namespace cuda

// A batch as a backend takes it, by the type of its activations: float on the CPU, BFloat16 on a
// GPU.
template <typename T>
struct BatchOfActivations;
template <>
struct BatchOfActivations<float> {
  using Type = std::span<const SequenceTokens>;
};
template <>
struct BatchOfActivations<BFloat16> {
  using Type = cuda::PagedBatch;
};
template <typename T>
using BatchOf = typename BatchOfActivations<T>::Type;

}  // namespace diffserve
