// cuBLASLt's place where the CUDA backend runs on the CPU: each output element is one chain in
// float32, and bits depend on nothing else.
#include <cmath>

#include "kernels/base/dtype.h"
#include "kernels/ops/linear_cuda.h"
#include "tests/kernels/shim/host_calls.h"

namespace diffserve::cuda {

class MatrixLibrary::State {};
MatrixLibrary::MatrixLibrary(std::unique_ptr<State> state) : state_(std::move(state)) {}
MatrixLibrary::~MatrixLibrary() = default;

Result<std::unique_ptr<MatrixLibrary>> MatrixLibrary::Open(const MatrixLibraryOptions&) {
  return std::unique_ptr<MatrixLibrary>(new MatrixLibrary(nullptr));
}

namespace {

float Read(const void* data, DType dtype, int64_t i) {
  return dtype == DType::kFloat32 ? static_cast<const float*>(data)[i]
                                  : BFloat16ToFloat(static_cast<const uint16_t*>(data)[i]);
}

cudaError_t Multiply(const LinearArgs& args) {
  const int64_t stride = args.y_stride == 0 ? args.out_features : args.y_stride;
  std::vector<float> x(static_cast<size_t>(args.in_features)), weight(x.size());
  for (int64_t out = 0; out < args.out_features; ++out) {
    for (int64_t in = 0; in < args.in_features; ++in) {
      weight[static_cast<size_t>(in)] = BFloat16ToFloat(args.weight[out * args.in_features + in]);
    }
    for (int64_t row = 0; row < args.rows; ++row) {
      float sum = 0;
      const uint16_t* in_row = args.x + row * args.in_features;
      for (size_t in = 0; in < weight.size(); ++in) sum += weight[in] * BFloat16ToFloat(in_row[in]);
      const int64_t at = row * stride + out;
      if (args.bias != nullptr) sum += Read(args.bias, args.y_dtype, out);
      if (args.accumulate) sum += Read(args.y, args.y_dtype, at);
      if (args.y_dtype == DType::kFloat32) {
        static_cast<float*>(args.y)[at] = sum;
      } else {
        static_cast<uint16_t*>(args.y)[at] = FloatToBFloat16(sum);
      }
    }
  }
  return cudaSuccess;
}

}  // namespace

Status MatrixLibrary::Linear(const LinearArgs& args, const Stream& stream) {
  return StatusOfCudaError(shim::Enqueue(stream.handle(), [args] { return Multiply(args); }),
                           "a product");
}
size_t MatrixLibrary::version() const { return 0; }

}  // namespace diffserve::cuda
