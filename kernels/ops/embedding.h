// SPDX-License-Identifier: Apache-2.0
// Embedding lookup: out[i] = the table's row for token i, as float32, the first state of the
// residual stream. Every element equals the table's exactly: rounding happened when the table was
// packed. Without tokens nothing is read or written.
#pragma once

#include <cstdint>

#include "kernels/base/status.h"
#include "kernels/base/tensor.h"

namespace diffserve {

class ThreadPool;

struct EmbeddingLookupArgs {
  const int32_t* tokens = nullptr;  // [num_tokens]; -1 - i: drawn[i * drawn_stride]
  float* out = nullptr;             // [num_tokens, width]
  int num_tokens = 0;
  const int32_t* drawn = nullptr;  // tokens that an earlier step drew
  int drawn_stride = 1;            // elements
};

// From the checkpoint's own table [vocab, width].
void EmbeddingLookupRef(const TensorView& table, const EmbeddingLookupArgs& args);

// A token outside the vocabulary is a bug of the caller (the server checks ids). The CPU aborts; on
// a device the behaviour is undefined.
namespace cpu {
class EmbeddingTable;
void EmbeddingLookup(const EmbeddingTable& table, const EmbeddingLookupArgs& args,
                     ThreadPool& pool);
}  // namespace cpu

namespace cuda {
class EmbeddingTable;
class Stream;
Status EmbeddingLookup(const EmbeddingTable& table, const EmbeddingLookupArgs& args,
                       const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
