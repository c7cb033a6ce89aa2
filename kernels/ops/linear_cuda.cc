// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/ops/weight_packer_cuda.h"
#include "kernels/ops/weight_tiles.h"

namespace diffserve::cuda {
namespace {

// More tokens than these multiply by the weights as bfloat16, a part of the matrix at a time.
constexpr int kQuantizedTokensMax = 64;

Status MultiplyQuantized(const QuantizedProduct& product, MatrixLibrary& library,
                         const Stream& stream) {
  const DeviceBuffer& wide = library.wide_weight();
  if (product.num_tokens <= kQuantizedTokensMax || wide.size_bytes() == 0)
    return LinearQuantized(product, stream);
  const QuantizedMatrix& weight = product.weight;
  const size_t row_bytes = static_cast<size_t>(weight.in_features) * sizeof(BFloat16);
  const int rows_at_once = static_cast<int>(wide.size_bytes() / row_bytes) / kTileRows * kTileRows;
  if (rows_at_once == 0) return LinearQuantized(product, stream);
  const size_t y_bytes = SizeOf(product.y_dtype);
  for (int first = 0; first < weight.out_features; first += rows_at_once) {
    const int rows = std::min(rows_at_once, weight.out_features - first);
    const size_t offset = static_cast<size_t>(first) * y_bytes;
    const auto* bias = static_cast<const std::byte*>(product.bias);
    DS_RETURN_IF_ERROR(WidenWeights(weight, first, rows, wide.as<BFloat16>(), stream));
    DS_RETURN_IF_ERROR(library.Multiply({.weight = wide.data(),
                                         .in_features = weight.in_features,
                                         .out_features = rows,
                                         .x = product.x,
                                         .num_rows = product.num_tokens,
                                         .y = static_cast<std::byte*>(product.y) + offset,
                                         .y_stride = weight.out_features,
                                         .y_dtype = product.y_dtype,
                                         .bias = bias == nullptr ? nullptr : bias + offset,
                                         .accumulate = product.accumulate},
                                        stream));
  }
  return Status();
}

template <typename Y>
Status Multiply(const PackedLinear& weight, const LinearArgs<BFloat16, Y>& args, DType y_dtype,
                MatrixLibrary& library, const Stream& stream) {
  const bool wants_float32 = weight.output() == LinearOutput::kFloat32;
  DS_CHECK(wants_float32 == (y_dtype == DType::kFloat32),
           "y has the type that the weight was packed for");
  if (IsQuantized(weight.format())) {
    return MultiplyQuantized({.weight = weight.quantized(),
                              .x = args.x,
                              .num_tokens = args.num_tokens,
                              .y = args.y,
                              .y_dtype = y_dtype,
                              .bias = weight.bias(),
                              .accumulate = args.accumulate},
                             library, stream);
  }
  return library.Multiply({.weight = weight.weight(),
                           .in_features = weight.in_features(),
                           .out_features = weight.out_features(),
                           .x = args.x,
                           .num_rows = args.num_tokens,
                           .y = args.y,
                           .y_dtype = y_dtype,
                           .bias = weight.bias(),
                           .accumulate = args.accumulate},
                          stream);
}

}  // namespace

Status Linear(const PackedLinear& weight, const LinearArgs<BFloat16>& args, MatrixLibrary& library,
              const Stream& stream) {
  return Multiply(weight, args, DType::kBFloat16, library, stream);
}

Status Linear(const PackedLinear& weight, const LinearArgs<BFloat16, float>& args,
              MatrixLibrary& library, const Stream& stream) {
  return Multiply(weight, args, DType::kFloat32, library, stream);
}

}  // namespace diffserve::cuda
