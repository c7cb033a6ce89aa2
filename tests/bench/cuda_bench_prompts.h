// SPDX-License-Identifier: Apache-2.0
// The figures of a prompt's products: the four of a layer of the paper's Diff-3B one after another,
// by int8 and int4 codes on the way to wgmma (kernels/ops/linear_quantized_cuda.h), beside
// cuBLASLt's with bfloat16 weights.
#pragma once

#include "tests/bench/cuda_bench_few_rows.h"

namespace diffserve::bench {

// None where the device has no such kernel, or no cuBLASLt.
void MeasurePromptProducts(const FewRowsFigures& figures);

}  // namespace diffserve::bench
