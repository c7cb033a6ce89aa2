// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/thread_pool.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_packer.h"
#include "kernels/process/check.h"

namespace diffserve::cpu {
namespace {

template <typename Codec>
void CopyRow(const void* table, int64_t row, int64_t width, float* out) {
  const auto* from = static_cast<const typename Codec::Panel::Element*>(table) + row * width;
  for (int64_t i = 0; i < width; ++i) out[i] = Codec::Decode(from[i]);
}

}  // namespace

void EmbeddingLookup(const EmbeddingTable& table, const EmbeddingLookupArgs& args,
                     ThreadPool& pool) {
  constexpr int kTokensWorthWaking = 16;
  const bool worth_waking = args.num_tokens >= kTokensWorthWaking;
  RunShares(pool, args.num_tokens, worth_waking, [&](int begin, int end) {
    for (int64_t i = begin; i < end; ++i) {
      int32_t token = args.tokens[i];
      if (token < 0) token = args.drawn[(-1 - token) * args.drawn_stride];
      DS_CHECK(token >= 0 && token < table.vocab(), "token id outside the vocabulary");
      WithCodec(table.format(), [&](auto codec) {
        CopyRow<decltype(codec)>(table.data(), token, table.width(), args.out + i * table.width());
      });
    }
  });
}

}  // namespace diffserve::cpu
