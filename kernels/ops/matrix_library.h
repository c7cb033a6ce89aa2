// MatrixLibrary: cuBLASLt, the products behind cuda::Linear. One a device, owned and used by the
// thread that owns the device.
//
// cuBLASLt is opened when a MatrixLibrary is made, not linked: NVIDIA ships no static version in
// its wheels, the shared one has 540 MB, and the binary must start on machines that have neither it
// nor a driver. It is sought under its name where the loader looks, then in the toolkit that the
// build used, then in /usr/local/cuda.
//
// *Invariants*: nothing is allocated on the device after Open. Which kernel runs depends on the
// shape (rows, in, out, types) alone and is chosen once for each, so equal calls give equal bits.
// Between numbers of rows a row's bits may differ, since cuBLASLt picks its kernel by them, and may
// split a product over in_features; with batch_invariant they do not: a layer's kernel is the one
// chosen for 128 rows, unsplit, so that each output element is the same chain whatever the number
// of rows. Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/cuda/stream.h"
#include "kernels/base/dtype.h"

namespace diffserve::cuda {

struct MatrixLibraryOptions {
  std::string path = {};                      // of libcublasLt.so.13; empty: sought as above
  size_t workspace_bytes = size_t{32} << 20;  // of the device, taken at Open
  int shapes_max = 4096;                      // remembered; all are forgotten when one more comes
  bool batch_invariant = false;  // a row's bits do not depend on the number of rows: slower for few
                                 // of them
};

// y = x W^T (+ bias) (+ y). Pointers are device memory. REQUIRES: weight, x and y are 16-byte
// aligned.
struct MatrixProduct {
  const void* weight = nullptr;  // bfloat16 [out_features, in_features]
  int in_features = 0;
  int out_features = 0;
  const void* x = nullptr;  // bfloat16 [num_rows, in_features]
  int num_rows = 0;
  void* y = nullptr;                 // [num_rows, out_features]
  DType y_dtype = DType::kBFloat16;  // or kFloat32
  const void* bias = nullptr;        // [out_features] of y_dtype, or nullptr
  bool accumulate = false;
};

class MatrixLibrary {
 public:
  // Opens cuBLASLt and makes its state on the calling thread's device. Errors: kNotFound, with the
  // places that were tried.
  static Result<std::unique_ptr<MatrixLibrary>> Open(const MatrixLibraryOptions& options = {});
  ~MatrixLibrary();

  // Queues the product. The first call with a shape takes some 50 us of host time more. Error:
  // kUnimplemented if cuBLASLt has no kernel.
  Status Multiply(const MatrixProduct& product, const Stream& stream);

 private:
  class State;
  explicit MatrixLibrary(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace diffserve::cuda
