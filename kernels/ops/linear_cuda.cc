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
constexpr int kCodedTokensMax = 64;

Status MultiplyInts(const QuantizedProduct& product, MatrixLibrary& library, const Stream& stream) {
  const DeviceBuffer& wide = library.scratch();
  const QuantizedMatrix& weight = product.weight;
  const size_t row_bytes = static_cast<size_t>(weight.in_features) * sizeof(BFloat16);
  const int rows_at_once = static_cast<int>(wide.size_bytes() / row_bytes) / kTileRows * kTileRows;
  if (product.num_tokens <= kCodedTokensMax || library.batch_invariant() || rows_at_once == 0)
    return LinearQuantized(product, stream);
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
                                         .x_stride = product.x_stride,
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

// Where a product's intermediate results lie in the scratch memory. The sizes do not depend on the
// number of tokens, so neither do a token's bits.
struct Fp8Scratch {
  static constexpr int kFeatures = 4096;  // of sums at a time

  explicit Fp8Scratch(const DeviceBuffer& memory, int in_features) {
    const size_t token_bytes = static_cast<size_t>(Fp8Padded(in_features)) + sizeof(float) +
                               kFeatures * sizeof(float);
    tokens = static_cast<int>(memory.size_bytes() / token_bytes) / 4 * 4;
    codes = memory.as<uint8_t>();
    scale = reinterpret_cast<float*>(codes + static_cast<size_t>(tokens) *
                                                 static_cast<size_t>(Fp8Padded(in_features)));
    sums = scale + tokens;
  }
  int tokens = 0;  // at a time
  uint8_t* codes;  // [tokens, Fp8Padded(in_features)]
  float* scale;    // [tokens]
  float* sums;     // [tokens, up to kFeatures]
};

Status MultiplyFp8(const QuantizedProduct& whole, MatrixLibrary& library, const Stream& stream) {
  const QuantizedMatrix& weight = whole.weight;
  const Fp8Scratch scratch(library.scratch(), weight.in_features);
  DS_CHECK(scratch.tokens > 0, "the library has scratch memory for fp8 weights");
  const int in_features = Fp8Padded(weight.in_features);
  for (int begin = 0; begin < whole.num_tokens; begin += scratch.tokens) {
    QuantizedProduct product = whole;
    product.num_tokens = std::min(scratch.tokens, whole.num_tokens - begin);
    product.x += begin * whole.x_stride;
    product.y = static_cast<std::byte*>(whole.y) + static_cast<size_t>(begin) *
                                                       static_cast<size_t>(weight.out_features) *
                                                       SizeOf(whole.y_dtype);
    DS_RETURN_IF_ERROR(QuantizeToFp8(product, scratch.codes, scratch.scale, stream));
    for (int first = 0; first < weight.out_features; first += Fp8Scratch::kFeatures) {
      const int features = std::min(Fp8Scratch::kFeatures, weight.out_features - first);
      DS_RETURN_IF_ERROR(library.Multiply(
          {.input_dtype = DType::kFp8E4M3,
           .weight = static_cast<const uint8_t*>(weight.codes) + int64_t{first} * in_features,
           .in_features = in_features,
           .out_features = Fp8Padded(features),
           .x = scratch.codes,
           .x_stride = in_features,
           .num_rows = product.num_tokens,
           .y = scratch.sums,
           .y_dtype = DType::kFloat32},
          stream));
      DS_RETURN_IF_ERROR(FinishFp8(product, scratch.scale, scratch.sums, first, features, stream));
    }
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
    const QuantizedProduct product = {.weight = weight.quantized(),
                                      .x = args.x,
                                      .x_stride = args.XStride(weight.in_features()),
                                      .num_tokens = args.num_tokens,
                                      .y = args.y,
                                      .y_dtype = y_dtype,
                                      .bias = weight.bias(),
                                      .accumulate = args.accumulate};
    return weight.format() == WeightFormat::kFp8E4M3 ? MultiplyFp8(product, library, stream)
                                                     : MultiplyInts(product, library, stream);
  }
  return library.Multiply({.weight = weight.weight(),
                           .in_features = weight.in_features(),
                           .out_features = weight.out_features(),
                           .x = args.x,
                           .x_stride = args.XStride(weight.in_features()),
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
