#include "kernels/base/check.h"
#include "kernels/ops/rowwise.h"

namespace diffserve::cpu {

void EmbeddingLookup(const TensorView& table, std::span<const int32_t> tokens, float* out,
                     ThreadPool& pool) {
  const int64_t vocab = table.shape[0];
  const int64_t width = table.shape[1];
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t token = tokens[static_cast<size_t>(row)];
      DS_CHECK(token >= 0 && token < vocab, "token id outside the vocabulary");
      CopyToFloat(table, token * width, width, out + row * width);
    }
  };
  constexpr size_t kRowsWorthWaking = 16;
  if (tokens.size() < kRowsWorthWaking) {
    copy(0, static_cast<int64_t>(tokens.size()));
    return;
  }
  pool.Run([&](int worker) {
    const Share share = ShareOf(static_cast<int>(tokens.size()), worker, pool.num_threads());
    copy(share.begin, share.end);
  });
}

}  // namespace diffserve::cpu
