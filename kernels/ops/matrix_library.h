// SPDX-License-Identifier: Apache-2.0
// MatrixLibrary: cuBLASLt, which computes the products of cuda::Linear. One per device, owned and
// used by the thread that owns the device.
//
// cuBLASLt is opened when a MatrixLibrary is created, not linked. NVIDIA ships no static version in
// its wheels, the shared one has 540 MB, and the binary must start on machines that have neither it
// nor a driver. It is searched by name in the loader's paths, which begin with the program's RPATH,
// then in the toolkit of the build; for the packages that is /usr/local/cuda.
//
// *Invariants*: nothing is allocated on the device after Open, except for padding. The kernel
// depends only on the shape (rows, in, out, types) and is chosen once per shape, so equal calls
// give equal bits. A row's bits may differ between numbers of rows: cuBLASLt picks its kernel by
// them, and may split a product over in_features. With batch_invariant they do not: a layer's
// kernel is the one chosen for 128 rows, unsplit, so each output element is the same chain for any
// number of rows. If that kernel refuses a number of rows, they are padded to 128, which is logged.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/memory.h"
#include "kernels/base/cuda/stream.h"
#include "kernels/base/dtype.h"

namespace diffserve::cuda {

struct MatrixLibraryOptions {
  std::string path = {};                      // of libcublasLt.so.13; empty: search as above
  size_t workspace_bytes = size_t{32} << 20;  // device memory, taken at Open
  int shapes_max = 4096;  // shapes remembered; all are forgotten when one more comes
  // A row's bits do not depend on the number of rows; slower for few rows.
  bool batch_invariant = false;
  // Device memory for products with quantised weights, and for those with a bfloat16 result and a
  // bias, taken at Open; 0: none.
  size_t scratch_bytes = 0;
  bool has_fp8_weights = false;  // asks cuBLASLt for scales_rows()
  // int8 and int4 weights become bfloat16 in scratch memory also where MultiplyCodes
  // (linear_quantized_cuda.h) has a kernel: to compare the two.
  bool widens_weights = false;
};

// y = x W^T (+ bias) (+ y). Pointers are device memory. REQUIRES: weight, x and y are 16-byte
// aligned. With 8-bit inputs, which need compute capability 8.9: features are multiples of 16 and
// there is no bias; without scales, y is float32 and does not accumulate. There is neither bias nor
// accumulation with a bfloat16 y: on an H200, cuBLASLt rounded such a product to bfloat16 before it
// added y.
struct MatrixProduct {
  DType input_dtype = DType::kBFloat16;  // of weight and x: or kFp8E4M3
  const void* weight = nullptr;          // [out_features, in_features]
  int in_features = 0;
  int out_features = 0;
  const void* x = nullptr;  // [num_rows, in_features]
  int64_t x_stride = 0;     // elements from row to row of x
  int num_rows = 0;
  void* y = nullptr;                 // [num_rows, out_features]
  int64_t y_stride = 0;              // elements from row to row of y; 0: out_features
  DType y_dtype = DType::kBFloat16;  // or kFloat32
  const float* bias = nullptr;       // [out_features], or nullptr
  bool accumulate = false;
  // Scales of 8-bit inputs: y[row][feature] is the product times x_scale[row] times
  // weight_scale[feature]. Both or neither. REQUIRES: scales_rows(); x_scale has memory for a
  // multiple of 128 rows.
  const float* weight_scale = nullptr;  // [out_features]
  const float* x_scale = nullptr;       // [num_rows]
};

// OpenDevice, if cuBLASLt can be opened too. Error: also kNotFound, with the places that were
// searched. Present in every build.
Result<DeviceInfo> OpenUsableDevice(int ordinal);
// The version of the cuBLASLt that is found, as a number; 0: there is none.
size_t MatrixLibraryVersion();

class MatrixLibrary {
 public:
  // Opens cuBLASLt and creates its state on the calling thread's device. Error: kNotFound, with the
  // places that were searched.
  static Result<std::unique_ptr<MatrixLibrary>> Open(const MatrixLibraryOptions& options = {});
  ~MatrixLibrary();

  // Queues the product. The first call with a shape takes some 50 us more host time. Error:
  // kUnimplemented if cuBLASLt has no kernel.
  Status Multiply(const MatrixProduct& product, const Stream& stream);

  bool batch_invariant() const { return options_.batch_invariant; }
  bool widens_weights() const { return options_.widens_weights; }
  // Whether cuBLASLt has kernels for products with scales: for fp8 weights on compute capability
  // 9.0.
  bool scales_rows() const { return scales_rows_; }
  // The memory of scratch_bytes, for one product at a time.
  const DeviceBuffer& scratch() const { return scratch_; }

 private:
  class State;
  MatrixLibrary(const MatrixLibraryOptions& options, std::unique_ptr<State> state,
                DeviceBuffer scratch);
  const MatrixLibraryOptions options_;
  const bool scales_rows_;
  std::unique_ptr<State> state_;
  DeviceBuffer scratch_;
};

}  // namespace diffserve::cuda
