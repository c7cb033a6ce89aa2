// SPDX-License-Identifier: Apache-2.0
// Measures what this machine can do right now: the divisors for speed figures. Shared machines
// change by the second, so probe right beside the measurement. A probe takes about 15 to 60 ms on
// an idle machine. It makes four passes and keeps the best, since a disturbance only makes a pass
// slower.
#pragma once

#include "kernels/base/cpu_isa.h"
#include "kernels/base/machine_probe_kernel.h"
#include "kernels/base/tensor.h"
#include "kernels/base/thread_pool.h"

namespace diffserve {

// All workers read their shares of a 256 MiB buffer.
class ReadProbe {
 public:
  explicit ReadProbe(CpuIsa isa = kBaseCpuIsa);
  double MeasureBytesPerSecond(ThreadPool& pool);
  static constexpr double kBytesRead = 4.0 * (256 << 20);  // per measurement

 private:
  CpuIsa isa_;
  Buffer buffer_;
};

// As ReadProbe, with a buffer of its own for one call.
double MeasureReadBytesPerSecond(CpuIsa isa, ThreadPool& pool);

// Independent multiply-adds in registers on all workers; one counts as two operations.
// `flops_done`, if given, receives the number of operations.
double MeasureFlopsPerSecond(Arithmetic arithmetic, CpuIsa isa, ThreadPool& pool,
                             double* flops_done = nullptr);

}  // namespace diffserve
