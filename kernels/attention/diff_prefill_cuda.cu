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
  size_t page_bytes;
  void (*kernel)(AttentionLaunch);
};

template <int kHeadDim, int kVDim, int kKMaps>
constexpr PrefillInstance InstanceOf() {
  return {kHeadDim, kVDim, kKMaps,
          kStripsPerPage * KvStrip<kHeadDim, kVDim, kKMaps, kImagePageSize>::kBytes,
          DiffPrefillKernel<kHeadDim, kVDim, kKMaps>};
}

// The same shapes as decode's.
const PrefillInstance kInstances[] = {
    InstanceOf<16, 16, 1>(),   InstanceOf<16, 32, 2>(),   InstanceOf<48, 48, 1>(),
    InstanceOf<48, 96, 2>(),   InstanceOf<64, 64, 1>(),   InstanceOf<64, 128, 2>(),
    InstanceOf<64, 64, 2>(),   InstanceOf<64, 128, 1>(),  InstanceOf<96, 96, 1>(),
    InstanceOf<96, 192, 2>(),  InstanceOf<128, 128, 1>(), InstanceOf<128, 256, 2>(),
    InstanceOf<128, 128, 2>(), InstanceOf<128, 256, 1>(),
};

AttentionTiling TilingOf(const DiffSpec& spec, const DeviceLimits& limits, bool allow_bulk_copies) {
  const int hopper_queries = allow_bulk_copies ? HopperPrefillQueries(spec, limits) : 0;
  const int portable_queries = kPrefillWarps * (spec.has_second_map() ? 8 : kMmaRows);
  return {spec.num_q1_heads / spec.num_kv_groups,
          hopper_queries > 0 ? hopper_queries : portable_queries, kNoSplitSlots};
}

cudaError_t LaunchPortable(const DiffAttentionArgs& args, const DeviceLimits& limits,
                           cudaStream_t stream) {
  const auto matches = [&](const PrefillInstance& instance) {
    return instance.head_dim == args.spec.head_dim && instance.v_dim == args.spec.v_dim &&
           instance.k_maps == args.spec.k_maps;
  };
  const auto* instance = std::find_if(std::begin(kInstances), std::end(kInstances), matches);
  if (instance == std::end(kInstances)) return cudaErrorInvalidValue;
  AttentionLaunch call = LaunchOf(args);
  const int64_t stages = limits.shared_bytes_max / static_cast<int64_t>(instance->page_bytes);
  if (stages < 1) return cudaErrorInvalidValue;
  call.num_stages = static_cast<int>(std::min<int64_t>(stages, kPrefillStagesMax));
  const size_t bytes = static_cast<size_t>(call.num_stages) * instance->page_bytes;
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
  const bool has_hopper = args.allow_bulk_copies && HopperPrefillQueries(args.spec, limits) > 0;
  return has_hopper ? LaunchHopperPrefill(args, limits, stream)
                    : LaunchPortable(args, limits, stream);
}

}  // namespace diffserve::cuda
