// SPDX-License-Identifier: Apache-2.0
// Replaces cuBLASLt where the CUDA backend runs on the CPU: each output element is one chain in
// float32, and its bits depend on nothing else.
#include <cmath>

#include "kernels/base/dtype.h"
#include "kernels/ops/matrix_library.h"
#include "tests/kernels/shim/host_calls.h"

namespace diffserve::cuda {

class MatrixLibrary::State {};
MatrixLibrary::MatrixLibrary(std::unique_ptr<State> state, DeviceBuffer scratch,
                             bool batch_invariant)
    : state_(std::move(state)), scratch_(std::move(scratch)), batch_invariant_(batch_invariant) {}
MatrixLibrary::~MatrixLibrary() = default;

Result<std::unique_ptr<MatrixLibrary>> MatrixLibrary::Open(const MatrixLibraryOptions& options) {
  Result<DeviceBuffer> scratch = DeviceBuffer::Allocate(options.scratch_bytes);
  if (!scratch.ok()) return scratch.status();
  return std::unique_ptr<MatrixLibrary>(
      new MatrixLibrary(nullptr, std::move(*scratch), options.batch_invariant));
}

namespace {

float Read(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kFp8E4M3) return Fp8E4M3ToFloat(static_cast<const uint8_t*>(data)[i]);
  return dtype == DType::kFloat32 ? static_cast<const float*>(data)[i]
                                  : BFloat16ToFloat(static_cast<const BFloat16*>(data)[i]);
}

cudaError_t Compute(const MatrixProduct& p) {
  shim::multiply_adds += int64_t{p.num_rows} * p.in_features * p.out_features;
  std::vector<float> weight(static_cast<size_t>(p.in_features));
  for (int64_t out = 0; out < p.out_features; ++out) {
    for (size_t in = 0; in < weight.size(); ++in) {
      weight[in] = Read(p.weight, p.input_dtype, out * p.in_features + static_cast<int64_t>(in));
    }
    for (int64_t row = 0; row < p.num_rows; ++row) {
      float sum = 0;
      for (size_t in = 0; in < weight.size(); ++in)
        sum += weight[in] *
               Read(p.x, p.input_dtype, row * p.in_features + static_cast<int64_t>(in));
      const int64_t at = row * (p.y_stride > 0 ? p.y_stride : p.out_features) + out;
      if (p.bias != nullptr) sum += Read(p.bias, p.y_dtype, out);
      if (p.accumulate) sum += Read(p.y, p.y_dtype, at);
      if (p.y_dtype == DType::kFloat32) {
        static_cast<float*>(p.y)[at] = sum;
      } else {
        static_cast<BFloat16*>(p.y)[at] = FloatToBFloat16(sum);
      }
    }
  }
  return cudaSuccess;
}

}  // namespace

Status MatrixLibrary::Multiply(const MatrixProduct& product, const Stream& stream) {
  return StatusOfCudaError(shim::Enqueue(stream.handle(), [product] { return Compute(product); }),
                           "a product");
}

}  // namespace diffserve::cuda
