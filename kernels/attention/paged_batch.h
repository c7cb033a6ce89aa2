// What a batch is: which tokens of which sequence, and where its pages are. SequenceTokens in the
// host's memory; for kernels on a device PagedBatch, the same in arrays of the device's memory
// that the host fills with one copy a step. Plain data, and passed to kernels by value.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"

namespace diffserve {

// What one sequence contributes to a batch: its tokens [position, position + num_tokens),
// after which the sequence has position + num_tokens tokens in the cache. pages[i] holds slots [i *
// page_size, (i + 1) * page_size).
struct SequenceTokens {
  int first_row = 0;  // of the batch's row-major activations
  int num_tokens = 0;
  int position = 0;
  const int32_t* pages = nullptr;
  // Of layers with a window, where those have page ids of their own; else nullptr: `pages`. What
  // lies wholly before the windows of these tokens may be -1.
  const int32_t* window_pages = nullptr;
};

namespace cuda {

// The tokens [position, position + num_tokens) of one sequence.
struct DeviceSequence {
  int32_t first_row;
  int32_t num_tokens;  // 0 for none
  int32_t position;
  int32_t first_page;  // of its pages in PagedBatch::pages; page i holds slots [i * page_size, (i +
                       // 1) * page_size)
  int32_t num_tokens_after = 0;  // of the same sequence in an entry of its own, following these
};

struct PagedBatch {
  int num_sequences = 0;
  int num_tokens = 0;
  const DeviceSequence* sequences = nullptr;  // [num_sequences]
  const int32_t* token_sequences = nullptr;   // [num_tokens], the index of each token's sequence;
                                              // one behind its end is nobody's
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
