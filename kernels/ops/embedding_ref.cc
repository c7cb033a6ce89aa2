// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/embedding.h"

namespace diffserve {

void EmbeddingLookupRef(const TensorView& table, const EmbeddingLookupArgs& args) {
  const int64_t width = table.shape[1];
  for (int64_t i = 0; i < args.num_tokens; ++i) {
    int64_t token = args.tokens[i];
    if (token < 0) token = args.drawn[(-1 - token) * args.drawn_stride];
    for (int64_t column = 0; column < width; ++column)
      args.out[i * width + column] = table.At(token * width + column);
  }
}

}  // namespace diffserve
