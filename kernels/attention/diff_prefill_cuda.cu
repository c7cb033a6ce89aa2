#include <algorithm>
#include <iterator>

#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_attention_cuda.h"
#include "kernels/attention/diff_prefill.cuh"
#include "kernels/attention/diff_prefill_sm90a_launch.cuh"

namespace diffserve::cuda {
namespace {

struct PrefillInstance {
  int head_dim;
  int v_dim;
  int k_maps;
  int64_t page_bytes;
  void (*kernel)(AttentionLaunch);
};

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
constexpr PrefillInstance InstanceOf() {
  return {kHeadDim, kVDim, kKMaps,
          ImageOf<Codec, kHeadDim, kVDim, kKMaps>(kImagePageSize).PageBytes(),
          DiffPrefillKernel<Codec, kHeadDim, kVDim, kKMaps>};
}

// The same shapes as decode's.
template <typename Codec>
const PrefillInstance kInstancesOf[] = {
    InstanceOf<Codec, 16, 16, 1>(),   InstanceOf<Codec, 16, 32, 2>(),
    InstanceOf<Codec, 48, 48, 1>(),   InstanceOf<Codec, 48, 96, 2>(),
    InstanceOf<Codec, 64, 64, 1>(),   InstanceOf<Codec, 64, 128, 2>(),
    InstanceOf<Codec, 64, 64, 2>(),   InstanceOf<Codec, 64, 128, 1>(),
    InstanceOf<Codec, 96, 96, 1>(),   InstanceOf<Codec, 96, 192, 2>(),
    InstanceOf<Codec, 128, 128, 1>(), InstanceOf<Codec, 128, 256, 2>(),
    InstanceOf<Codec, 128, 128, 2>(), InstanceOf<Codec, 128, 256, 1>(),
};

const CodecInstances<PrefillInstance> kTable[] = {
    {DType::kBFloat16, kInstancesOf<BFloat16Codec>},
};

AttentionTiling TilingOf(const DiffSpec& spec, const DeviceLimits& limits, bool allow_bulk_copies) {
  const int hopper_queries = allow_bulk_copies
                                 ? HopperPrefillQueries(spec, ImageFormat(spec).codec.dtype, limits)
                                 : 0;
  const int portable_queries = kPrefillWarps * (spec.has_second_map() ? 8 : kMmaRows);
  return {spec.num_q1_heads / spec.num_kv_groups,
          hopper_queries > 0 ? hopper_queries : portable_queries, kNoSplitSlots};
}

cudaError_t LaunchPortable(const DiffAttentionArgs& args, const DeviceLimits& limits,
                           cudaStream_t stream) {
  const PrefillInstance* instance = FindInstance(kTable, args.spec, args.kv.format.codec.dtype);
  if (instance == nullptr) return cudaErrorInvalidValue;
  AttentionLaunch call = LaunchOf(args);
  const int64_t stages = limits.shared_bytes_max / instance->page_bytes;
  if (stages < 1) return cudaErrorInvalidValue;
  call.num_stages = static_cast<int>(std::min<int64_t>(stages, kPrefillStagesMax));
  const size_t bytes = static_cast<size_t>(call.num_stages * instance->page_bytes);
  const cudaError_t error = cudaFuncSetAttribute(
      instance->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  const cudaLaunchConfig_t config = LaunchConfig(limits.multiprocessors, kPrefillThreads, bytes,
                                                 stream);
  return cudaLaunchKernelEx(&config, instance->kernel, call);
}

}  // namespace

AttentionTiling DiffPrefillTiling(const DiffSpec& spec, bool allow_bulk_copies) {
  DeviceLimits limits;
  if (ReadLimits(&limits) != cudaSuccess) limits = {};  // no device: DiffPrefill says so
  return TilingOf(spec, limits, allow_bulk_copies);
}

int DiffPrefill(const DiffAttentionArgs& args, CUstream_st* stream) {
  if (args.batch.num_rows == 0) return cudaSuccess;
  DeviceLimits limits;
  const cudaError_t error = ReadLimits(&limits);
  if (error != cudaSuccess) return error;
  const AttentionTiling tiling = TilingOf(args.spec, limits, args.allow_bulk_copies);
  if (args.tiling.rows_per_tile != tiling.rows_per_tile)
    return cudaErrorInvalidValue;  // another device's
  const bool has_hopper = args.allow_bulk_copies &&
                          HopperPrefillQueries(args.spec, args.kv.format.codec.dtype, limits) > 0;
  return has_hopper ? LaunchHopperPrefill(args, limits, stream)
                    : LaunchPortable(args, limits, stream);
}

}  // namespace diffserve::cuda
