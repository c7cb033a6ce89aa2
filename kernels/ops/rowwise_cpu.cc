#include "kernels/base/kernel_table.h"
#include "kernels/ops/rowwise.h"
#include "kernels/ops/rowwise_kernel.h"

namespace diffserve::cpu {
namespace {

// Below this many elements waking the workers costs more than it saves.
constexpr int64_t kElementsWorthWaking = 16384;

}  // namespace

void RmsNorm(const RmsNormArgs& args, CpuIsa isa, ThreadPool& pool) {
  const KernelTable& kernels = KernelsFor(isa);
  const auto rows = [&](int begin, int end) {
    const int64_t offset = static_cast<int64_t>(begin) * args.width;
    kernels.rms_norm({.x = args.x + offset,
                      .weight = args.weight,
                      .out = args.out + offset,
                      .rows = end - begin,
                      .width = args.width,
                      .eps = args.eps});
  };
  if (static_cast<int64_t>(args.rows) * args.width < kElementsWorthWaking)
    return rows(0, args.rows);
  pool.Run([&](int worker) {
    const Share share = ShareOf(args.rows, worker, pool.num_threads());
    rows(share.begin, share.end);
  });
}

void SiluMul(const SiluMulArgs& args, CpuIsa isa, ThreadPool& pool) {
  const KernelTable& kernels = KernelsFor(isa);
  const auto rows = [&](int begin, int end) {
    const int64_t offset = static_cast<int64_t>(begin) * args.width;
    kernels.silu_mul({.x = args.x + 2 * offset,
                      .out = args.out + offset,
                      .rows = end - begin,
                      .width = args.width});
  };
  if (static_cast<int64_t>(args.rows) * args.width < kElementsWorthWaking)
    return rows(0, args.rows);
  pool.Run([&](int worker) {
    const Share share = ShareOf(args.rows, worker, pool.num_threads());
    rows(share.begin, share.end);
  });
}

void PolyNormMul(const PolyNormMulArgs& args, CpuIsa isa, ThreadPool& pool) {
  const KernelTable& kernels = KernelsFor(isa);
  const auto rows = [&](int begin, int end) {
    const int64_t offset = static_cast<int64_t>(begin) * args.width;
    kernels.poly_norm_mul({.x = args.x + 2 * offset,
                           .out = args.out + offset,
                           .rows = end - begin,
                           .width = args.width,
                           .weight = {args.weight[0], args.weight[1], args.weight[2]},
                           .bias = args.bias,
                           .eps = args.eps});
  };
  if (static_cast<int64_t>(args.rows) * args.width < kElementsWorthWaking)
    return rows(0, args.rows);
  pool.Run([&](int worker) {
    const Share share = ShareOf(args.rows, worker, pool.num_threads());
    rows(share.begin, share.end);
  });
}

void Sigmoid(std::span<float> x, CpuIsa isa) {
  KernelsFor(isa).sigmoid(x.data(), static_cast<int64_t>(x.size()));
}

}  // namespace diffserve::cpu
