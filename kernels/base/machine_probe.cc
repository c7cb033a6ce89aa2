// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/machine_probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/base/kernels_for.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

double SecondsOf(ThreadPool& pool, const std::function<void(int)>& body) {
  const auto start = std::chrono::steady_clock::now();
  pool.Run(body);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

constexpr size_t kReadBytes = size_t{256} << 20;
constexpr int kPasses = 4;

ReadProbe::ReadProbe(CpuIsa isa) : isa_(isa), buffer_(kReadBytes) {
  // Backs the buffer with memory; otherwise all reads would hit one page.
  std::memset(buffer_.data(), 0, buffer_.size_bytes());
}

double ReadProbe::MeasureBytesPerSecond(ThreadPool& pool) {
  const auto& kernels = KernelsFor<ProbeKernels>(isa_);
  constexpr int kPieceFloats = 1 << 18;
  constexpr int kPieces = static_cast<int>(kReadBytes / (kPieceFloats * sizeof(float)));
  std::vector<float> sums(static_cast<size_t>(pool.num_threads()));
  double seconds = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < kPasses; ++pass) {
    const double taken = SecondsOf(pool, [&](int worker) {
      const Share share = ShareOf(kPieces, worker, pool.num_threads());
      const float* begin = buffer_.as<float>() + static_cast<int64_t>(share.begin) * kPieceFloats;
      sums[static_cast<size_t>(worker)] = kernels.read_all(
          begin, static_cast<int64_t>(share.end - share.begin) * kPieceFloats);
    });
    seconds = std::min(seconds, taken);
  }
  for (float sum : sums) DS_CHECK(sum == 0, "the probe's buffer holds zeros");
  return static_cast<double>(kReadBytes) / seconds;
}

double MeasureReadBytesPerSecond(CpuIsa isa, ThreadPool& pool) {
  return ReadProbe(isa).MeasureBytesPerSecond(pool);
}

double MeasureFlopsPerSecond(Arithmetic arithmetic, CpuIsa isa, ThreadPool& pool,
                             double* flops_done) {
  const auto& kernels = KernelsFor<ProbeKernels>(isa);
  std::vector<double> flops(static_cast<size_t>(pool.num_threads()));
  constexpr int64_t kIterations = 1'000'000;
  double most = 0;
  double done = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double seconds = SecondsOf(pool, [&](int worker) {
      flops[static_cast<size_t>(worker)] = kernels.flops(arithmetic, kIterations);
    });
    const double total = std::reduce(flops.begin(), flops.end());
    done += total;
    most = std::max(most, total / seconds);
  }
  if (flops_done != nullptr) *flops_done = done;
  return most;
}

}  // namespace diffserve
