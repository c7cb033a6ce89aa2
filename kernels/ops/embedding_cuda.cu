// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/embedding.h"
#include "kernels/ops/row_access.cuh"
#include "kernels/ops/weight_packer_cuda.h"

namespace diffserve::cuda {

// Grid: tokens, slices of kRowThreads * kVec columns.
template <int kVec>
__global__ void __launch_bounds__(kRowThreads)
    EmbeddingLookupKernel(const BFloat16* table, int64_t width, EmbeddingLookupArgs args) {
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.x) * kVec;
  if (i >= width) return;
  int64_t token = args.tokens[blockIdx.x];
  if (token < 0) token = args.drawn[(-1 - token) * args.drawn_stride];
  float x[kVec];
  LoadRow<kVec>(table + token * width + i, x);
  StoreRow<kVec>(x, args.out + blockIdx.x * width + i);
}

Status EmbeddingLookup(const EmbeddingTable& table, const EmbeddingLookupArgs& args,
                       const Stream& stream) {
  if (args.num_tokens == 0) return Status();
  const auto* rows = static_cast<const BFloat16*>(table.data());
  const bool wide = TakesWideAccesses(table.width(), {rows, args.out});
  return Launch(
      "EmbeddingLookup", SlicedTokens(args.num_tokens, table.width(), wide ? kVecWide : 1), stream,
      wide ? EmbeddingLookupKernel<kVecWide> : EmbeddingLookupKernel<1>, rows, table.width(), args);
}

}  // namespace diffserve::cuda
