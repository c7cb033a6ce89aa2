// SPDX-License-Identifier: Apache-2.0
// Linear layers: y = x W^T (+ bias) (+ y). W is [out_features, in_features], as checkpoints store
// it, and packed once at load (weight_packer.h, weight_packer_cuda.h) into what the backend's
// kernel reads.
//
// Products are accumulated in float32; bias and y are added to the finished sum. A NaN or infinity
// in x or W reaches every output that has it as a factor. Without tokens nothing is read or
// written.
//
// *Invariants*: on the CPU an element is one chain over in_features in ascending order, so a
// token's bits depend neither on the other tokens nor on the number of threads. On a device equal
// calls give equal bits. With MatrixLibraryOptions::batch_invariant a token's bits do not depend on
// the number of tokens either; nor do those of LinearFewRows, which are others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/base/tensor.h"

namespace diffserve {

enum class Arithmetic : uint8_t;
enum class CpuIsa;
enum class WeightFormat : uint8_t;
class ThreadPool;

// Part of a packed matrix: rows of a checkpoint tensor in a given order. Several parts are stacked
// (q, k and v become one matrix).
struct LinearPart {
  TensorView weight;  // [n, in_features], float32, bfloat16 or float16
  // Output feature i of this part is weight row row_order[i]; empty: as stored.
  std::vector<int32_t> row_order;
  TensorView bias;        // [n] in the checkpoint's order, or data == nullptr
  TensorView scale = {};  // the same, float32: the weight is fp8 codes times these (Fp8WeightCodec)

  int64_t out_features() const {
    return row_order.empty() ? weight.shape[0] : static_cast<int64_t>(row_order.size());
  }
  int64_t RowOf(int64_t out_feature) const {
    return row_order.empty() ? out_feature : row_order[static_cast<size_t>(out_feature)];
  }
};

// The type of y: the backend's activations (float32 on the CPU, bfloat16 on a device), or float32
// on either, as for the residual stream, logits and lambdas.
enum class LinearOutput { kActivation, kFloat32 };

template <typename X, typename Y = X>
struct LinearArgs {
  const X* x = nullptr;  // [num_tokens, in_features]
  int num_tokens = 0;
  Y* y = nullptr;           // [num_tokens, out_features]
  bool accumulate = false;  // y += x W^T (the residual connection)
  int64_t x_stride = 0;     // elements from row to row of x; 0: in_features

  int64_t XStride(int64_t in_features) const { return x_stride == 0 ? in_features : x_stride; }
};

// Naive double-precision y from the checkpoint's own tensors: the oracle.
void LinearRef(std::span<const LinearPart> parts, const LinearArgs<float>& args);

namespace cpu {
class PackedLinear;
// How layers of this format are multiplied at this level.
Arithmetic ArithmeticOf(WeightFormat format, CpuIsa isa);
void Linear(const PackedLinear& weight, const LinearArgs<float>& args, ThreadPool& pool);
}  // namespace cpu

template <typename T>
struct RopeAppendArgs;

namespace cuda {
class MatrixLibrary;
struct FewRowsUse;
class PackedLinear;
class Stream;
// REQUIRES: x and y are 16-byte aligned; y has the type that the weight was packed for. The first
// call with a shape takes some 50 us more host time. Error: kUnimplemented if cuBLASLt has no
// kernel for the shape.
Status Linear(const PackedLinear& weight, const LinearArgs<BFloat16>& args, MatrixLibrary& library,
              const Stream& stream);
Status Linear(const PackedLinear& weight, const LinearArgs<BFloat16, float>& args,
              MatrixLibrary& library, const Stream& stream);
// Whether in_features is a multiple of 8.
bool TakesFewRows(const PackedLinear& weight);
// The same by the chain of few_rows_cuda.h, for any number of tokens. REQUIRES: TakesFewRows.
Status LinearFewRows(const PackedLinear& weight, const LinearArgs<BFloat16>& args,
                     const FewRowsUse& use, const Stream& stream);
Status LinearFewRows(const PackedLinear& weight, const LinearArgs<BFloat16, float>& args,
                     const FewRowsUse& use, const Stream& stream);
// The product, and RopeAppend, of the batch's first args.num_tokens rows, with the bits of
// LinearFewRows and RopeAppend. REQUIRES: FewRowsAppendTo the pages' type. Neither args.y nor
// append.qkv is used.
Status LinearAppendFewRows(const PackedLinear& weight, const LinearArgs<BFloat16>& args,
                           const RopeAppendArgs<BFloat16>& append, const FewRowsUse& use,
                           const Stream& stream);
// y [num_tokens, out_features / 2] = silu(gate) up of the halves of x W^T, with the bits of
// LinearFewRows and SiluMul.
Status LinearSiluMulFewRows(const PackedLinear& weight, const LinearArgs<BFloat16>& args,
                            const FewRowsUse& use, const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
