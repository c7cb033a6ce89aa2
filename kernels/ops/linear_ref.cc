#include "kernels/ops/linear.h"

namespace diffserve {

void LinearRef(std::span<const LinearPart> parts, const LinearArgs& args) {
  int64_t out_features = 0;
  for (const LinearPart& part : parts) {
    out_features += part.row_order.empty() ? part.weight.shape[0]
                                           : static_cast<int64_t>(part.row_order.size());
  }
  const int64_t stride = args.y_stride != 0 ? args.y_stride : out_features;
  int64_t column = 0;
  for (const LinearPart& part : parts) {
    const int64_t in_features = part.weight.shape[1];
    const int64_t count = part.row_order.empty() ? part.weight.shape[0]
                                                 : static_cast<int64_t>(part.row_order.size());
    for (int64_t i = 0; i < count; ++i, ++column) {
      const int64_t weight_row = part.row_order.empty() ? i
                                                        : part.row_order[static_cast<size_t>(i)];
      for (int row = 0; row < args.rows; ++row) {
        double sum = part.bias.data != nullptr ? part.bias.At(weight_row) : 0.0;
        for (int64_t k = 0; k < in_features; ++k) {
          sum += static_cast<double>(args.x[row * in_features + k]) *
                 static_cast<double>(part.weight.At(weight_row * in_features + k));
        }
        float& y = args.y[row * stride + column];
        y = static_cast<float>(args.accumulate ? static_cast<double>(y) + sum : sum);
      }
    }
  }
}

}  // namespace diffserve
