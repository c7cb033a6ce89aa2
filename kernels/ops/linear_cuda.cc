// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/ops/weight_packer_cuda.h"

namespace diffserve::cuda {
namespace {

template <typename Y>
Status Multiply(const PackedLinear& weight, const LinearArgs<BFloat16, Y>& args, DType y_dtype,
                MatrixLibrary& library, const Stream& stream) {
  const bool wants_float32 = weight.output() == LinearOutput::kFloat32;
  DS_CHECK(wants_float32 == (y_dtype == DType::kFloat32),
           "y has the type that the weight was packed for");
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
