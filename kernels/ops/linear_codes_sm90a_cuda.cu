// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/linear_codes_sm90a.cuh"

namespace diffserve::cuda {

// Grid: thread blocks that share the tiles, one per multiprocessor.
template <typename Lane>
__global__ void __launch_bounds__(kCodesThreads, 1)
    LinearCodesSm90aKernel(const __grid_constant__ CodesCall call) {
  const CodesRing<Lane> ring = {SharedAddress(DynamicShared())};
  if (threadIdx.x == 0) ring.Init(ring.base);
  __syncthreads();
  // The shuffle shows the compiler that it is warp-uniform.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < 4) {
    DecreaseRegisters<kCodesFetchRegisters>();
    FetchTiles<Lane>(call, ring, warp);
  } else {
    IncreaseRegisters<kCodesComputeRegisters>();
    ComputeTiles<Lane>(call, ring, {warp / 4 - 1, warp % 4, static_cast<int>(threadIdx.x) % 32});
  }
}

Result<bool> MultiplyCodes(const QuantizedProduct& product, const Stream& stream,
                           std::span<float> part_sums) {
  int device = 0, num_sms = 0, shared_bytes = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  const auto read = [&](int* value, cudaDeviceAttr attribute) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(value, attribute, device);
  };
  read(&num_sms, cudaDevAttrMultiProcessorCount);
  read(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  read(&major, cudaDevAttrComputeCapabilityMajor);
  if (error != cudaSuccess) return ToStatus(error, "reading the device's limits");
  const bool is_int8 = product.weight.format == WeightFormat::kInt8;
  const uint32_t needed = is_int8 ? CodesRing<Int8Lane>::kBytes : CodesRing<Int4Lane>::kBytes;
  if (major != 9 || static_cast<uint32_t>(shared_bytes) < needed) return false;
  if (product.num_tokens == 0) return true;

  auto* const kernel = is_int8 ? LinearCodesSm90aKernel<Int8Lane>
                               : LinearCodesSm90aKernel<Int4Lane>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(needed));
  if (error != cudaSuccess) return ToStatus(error, "shared memory of LinearCodes");
  const size_t y_elements = static_cast<size_t>(product.num_tokens) *
                            static_cast<size_t>(product.weight.out_features);
  const CodesTiles tiles = CodesTiles::Of(
      product, num_sms, static_cast<int>(std::min(part_sums.size() / y_elements, size_t{1} << 10)));
  CodesCall call = {product, tiles};
  if (tiles.parts > 1) {
    call.product.y = part_sums.data();
    call.product.y_dtype = DType::kFloat32;
    call.product.bias = nullptr;
    call.product.accumulate = false;
  }
  const LaunchShape shape = {dim3(static_cast<unsigned>(std::min(num_sms, tiles.items))),
                             dim3(kCodesThreads), needed};
  const Status launched = Launch("LinearCodes", shape, stream, kernel, call);
  if (!launched.ok()) return launched;
  if (tiles.parts == 1) return true;
  QuantizedProduct scaled = product;
  scaled.weight.scale = nullptr;  // the parts are scaled
  const Status finished = FinishSums(scaled,
                                     {.sums = part_sums.data(),
                                      .num_parts = tiles.parts,
                                      .num_features = product.weight.out_features,
                                      .stride = product.weight.out_features},
                                     stream);
  if (!finished.ok()) return finished;
  return true;
}

}  // namespace diffserve::cuda
