#include <initializer_list>

#include "kernels/base/check.h"
#include "kernels/base/cuda/launch.cuh"
#include "kernels/ops/rowwise_cuda.h"
#include "kernels/ops/rowwise_kernel.cuh"

namespace diffserve::cuda {
namespace {

constexpr int kVecWide = 8;

bool TakesWideAccesses(int64_t width, std::initializer_list<const void*> pointers) {
  uintptr_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  return width % kVecWide == 0 && bits % sizeof(Words4) == 0;
}

LaunchShape Rows(int rows) { return {dim3(static_cast<unsigned>(rows)), dim3(kRowThreads)}; }

// One thread block a row and slice of columns.
LaunchShape SlicedRows(int rows, int width, int vec) {
  const int slice = kRowThreads * vec;
  return {dim3(static_cast<unsigned>(rows), static_cast<unsigned>((width + slice - 1) / slice)),
          dim3(kRowThreads)};
}

}  // namespace

Status RmsNorm(const RmsNormArgs& args, const Stream& stream) {
  DS_CHECK(args.add == nullptr || args.source_rows == nullptr, "RmsNorm either adds or gathers");
  if (args.rows == 0) return Status();
  const bool wide = TakesWideAccesses(args.width, {args.residual, args.add, args.weight, args.out});
  return Launch("RmsNorm", Rows(args.rows), stream,
                wide ? RmsNormKernel<kVecWide> : RmsNormKernel<1>, args);
}

Status SiluMul(const SiluMulArgs& args, const Stream& stream) {
  if (args.rows == 0) return Status();
  const bool wide = TakesWideAccesses(args.width, {args.x, args.out});
  return Launch("SiluMul", SlicedRows(args.rows, args.width, wide ? kVecWide : 1), stream,
                wide ? SiluMulKernel<kVecWide> : SiluMulKernel<1>, args);
}

Status PolyNormMul(const PolyNormMulArgs& args, const Stream& stream) {
  if (args.rows == 0) return Status();
  const bool wide = TakesWideAccesses(args.width, {args.x, args.out});
  return Launch("PolyNormMul", Rows(args.rows), stream,
                wide ? PolyNormMulKernel<kVecWide> : PolyNormMulKernel<1>, args);
}

Status Sigmoid(const SigmoidArgs& args, const Stream& stream) {
  if (args.count == 0) return Status();
  const bool wide = TakesWideAccesses(args.count, {args.x});
  const int64_t slice = kRowThreads * (wide ? kVecWide : 1);
  const LaunchShape shape = {dim3(static_cast<unsigned>((args.count + slice - 1) / slice)),
                             dim3(kRowThreads)};
  return Launch("Sigmoid", shape, stream, wide ? SigmoidKernel<kVecWide> : SigmoidKernel<1>, args);
}

Status EmbeddingLookup(const EmbeddingLookupArgs& args, const Stream& stream) {
  DS_CHECK(args.dtype != DType::kFloat16, "embedding tables are float32 or bfloat16 on the device");
  if (args.rows == 0) return Status();
  const bool wide = TakesWideAccesses(args.width, {args.table, args.out});
  auto* kernel = wide ? EmbeddingLookupKernel<uint16_t, kVecWide>
                      : EmbeddingLookupKernel<uint16_t, 1>;
  if (args.dtype == DType::kFloat32)
    kernel = wide ? EmbeddingLookupKernel<float, kVecWide> : EmbeddingLookupKernel<float, 1>;
  return Launch("EmbeddingLookup", SlicedRows(args.rows, args.width, wide ? kVecWide : 1), stream,
                kernel, args);
}

}  // namespace diffserve::cuda
