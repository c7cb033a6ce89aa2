// SPDX-License-Identifier: Apache-2.0
// The only table of kernel tolerances relative to the double-precision reference. Both read the
// same stored K, V and weights. The remaining error is float32 arithmetic, which is the same at
// every level, and the rounding of stored results.
#pragma once

#include <cmath>

#include "kernels/base/dtype.h"

namespace diffserve::testing {

enum class KernelOp {
  kLinear,
  kFp8Linear,  // of fp8 codes, by a device
  kAttention,
  kRmsNorm,
  kLayerNorm,
  kSiluMul,
  kPolyNormMul,
  kSigmoid,
  kRope,
  kCausalConv,
  kSelectiveScan,
  kScanState,
  kGatedMemory
};

struct Tolerance {
  double absolute;  // relative to inputs of size about 1
  double relative;
};

struct ToleranceRow {
  KernelOp op;
  DType dtype;  // in which results are stored; of attention: K and V; of a state: activations
  Tolerance tolerance;
};

// Linear sums up to 700 products of size 1; the sub-norm after a subtraction magnifies attention's
// rounding errors; PolyNorm's terms cancel, and so do those of a convolution, a LayerNorm's mean
// and a scan's sum over 128 states. Half a unit of the stored dtype at worst comes on top.
inline constexpr ToleranceRow kTolerances[] = {
    {KernelOp::kAttention, DType::kFloat32, {4e-5, 2e-5}},
    {KernelOp::kAttention, DType::kBFloat16, {4e-5, 2e-5}},
    {KernelOp::kAttention, DType::kFloat16, {4e-5, 2e-5}},
    // Weights are rounded to 16 bits of the largest of 256; the sub-norm magnifies that.
    {KernelOp::kAttention, DType::kInt8, {5e-4, 5e-4}},
    {KernelOp::kAttention, DType::kInt8KInt4V, {5e-4, 5e-4}},
    {KernelOp::kAttention, DType::kInt4, {5e-4, 5e-4}},
    {KernelOp::kRope, DType::kFloat32, {5e-7, 1e-6}},
    {KernelOp::kRope, DType::kBFloat16, {5e-7, 8e-3}},
    {KernelOp::kRope, DType::kFloat16, {6e-7, 1e-3}},
    {KernelOp::kLinear, DType::kFloat32, {1e-4, 1e-5}},
    {KernelOp::kLinear, DType::kBFloat16, {1e-4, 0x1p-8 * 1.01}},
    // Hopper's tensor cores add 32 products at a time to a sum. They keep 14 bits of the largest
    // term, and cut off the others there, towards zero (tests/kernels/shim/tensor_core.h). That is
    // up to 7e-3 for 1,300 products of numbers below 1.
    {KernelOp::kFp8Linear, DType::kFloat32, {1e-2, 1e-5}},
    {KernelOp::kFp8Linear, DType::kBFloat16, {1e-2, 0x1p-8 * 1.01}},
    {KernelOp::kRmsNorm, DType::kFloat32, {0, 1e-6}},
    {KernelOp::kRmsNorm, DType::kBFloat16, {1e-30, 0x1p-8 * 1.01}},
    {KernelOp::kLayerNorm, DType::kFloat32, {1e-6, 1e-6}},
    {KernelOp::kLayerNorm, DType::kBFloat16, {1e-6, 0x1p-8 * 1.01}},
    {KernelOp::kSiluMul, DType::kFloat32, {1e-36, 1e-6}},
    {KernelOp::kSiluMul, DType::kBFloat16, {1e-30, 0x1p-8 * 1.01}},
    {KernelOp::kPolyNormMul, DType::kFloat32, {2e-6, 2e-6}},
    {KernelOp::kPolyNormMul, DType::kBFloat16, {4e-6, 0x1p-8 * 1.01}},
    {KernelOp::kSigmoid, DType::kFloat32, {1e-36, 1e-6}},
    {KernelOp::kCausalConv, DType::kFloat32, {5e-7, 1e-6}},
    {KernelOp::kCausalConv, DType::kBFloat16, {5e-7, 0x1p-8 * 1.01}},
    {KernelOp::kSelectiveScan, DType::kFloat32, {1e-5, 2e-6}},
    {KernelOp::kSelectiveScan, DType::kBFloat16, {1e-5, 0x1p-8 * 1.01}},
    {KernelOp::kScanState, DType::kFloat32, {2e-6, 2e-6}},
    {KernelOp::kScanState, DType::kBFloat16, {2e-5, 2e-5}},  // ex2.approx: up to 2 units off
    {KernelOp::kGatedMemory, DType::kFloat32, {1e-36, 1e-6}},
    {KernelOp::kGatedMemory, DType::kBFloat16, {1e-30, 0x1p-8 * 1.01}},
};

// With bfloat16 activations: an attention kernel's largest error, of that of the reference when it
// rounds to bfloat16 what such a kernel has to round (attention_rounding.h).
inline constexpr double kAttentionRoundingTimes = 2;

inline Tolerance ToleranceOf(KernelOp op, DType dtype) {
  for (const ToleranceRow& row : kTolerances) {
    if (row.op == op && row.dtype == dtype) return row.tolerance;
  }
  return {0, 0};
}

// NaN matches NaN and an infinity itself, nothing else.
inline bool WithinTolerance(double value, double expected, const Tolerance& tolerance) {
  if (std::isnan(expected) || std::isinf(expected))
    return value == expected || (std::isnan(value) && std::isnan(expected));
  return std::abs(value - expected) <= tolerance.absolute + tolerance.relative * std::abs(expected);
}

}  // namespace diffserve::testing
