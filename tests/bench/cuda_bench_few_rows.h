// SPDX-License-Identifier: Apache-2.0
// The figures of few-row products (kernels/ops/few_rows_cuda.h): the four of a layer of the paper's
// Diff-3B one after another in a graph, with cuBLASLt's beside them, and its output matrix; for
// bfloat16, int8, int4 and fp8 weights.
#pragma once

#include <functional>
#include <string>

#include "kernels/base/cuda/device.h"
#include "kernels/ops/matrix_library.h"
#include "tests/bench/cuda_bench_timing.h"

namespace diffserve::bench {

struct FewRowsFigures {
  const cuda::DeviceInfo& device;
  Timer& timer;
  cuda::MatrixLibrary* library = nullptr;  // or there are no figures of it
  double read_gb_per_s = 0;                // of the read probe
  std::function<bool(const std::string& name)> wants;
  std::function<void(const std::string& name, double value)> add;
};
void MeasureFewRows(const FewRowsFigures& figures);

}  // namespace diffserve::bench
