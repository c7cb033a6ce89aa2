// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/linear.h"

namespace diffserve {

void LinearRef(std::span<const LinearPart> parts, const LinearArgs<float>& args) {
  int64_t out_features = 0;
  for (const LinearPart& part : parts) out_features += part.out_features();
  int64_t column = 0;
  for (const LinearPart& part : parts) {
    const int64_t in_features = part.weight.shape[1];
    for (int64_t i = 0; i < part.out_features(); ++i, ++column) {
      const int64_t row = part.RowOf(i);
      for (int64_t token = 0; token < args.num_tokens; ++token) {
        double sum = part.bias.data != nullptr ? part.bias.At(row) : 0.0;
        for (int64_t k = 0; k < in_features; ++k) {
          sum += static_cast<double>(args.x[token * args.XStride(in_features) + k]) *
                 static_cast<double>(part.weight.At(row * in_features + k));
        }
        float& y = args.y[token * out_features + column];
        y = static_cast<float>(args.accumulate ? static_cast<double>(y) + sum : sum);
      }
    }
  }
}

}  // namespace diffserve
