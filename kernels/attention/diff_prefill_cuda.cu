#include <algorithm>
#include <iterator>

#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_attention_cuda.h"
#include "kernels/attention/diff_prefill.cuh"

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
  return {kHeadDim, kVDim, kKMaps, kStripsPerPage * KvStrip<kHeadDim, kVDim, kKMaps, kImagePageSize>::kBytes,
          DiffPrefillKernel<kHeadDim, kVDim, kKMaps>};
}

// The same shapes as decode's.
const PrefillInstance kInstances[] = {
    InstanceOf<16, 16, 1>(),   InstanceOf<16, 32, 2>(),   InstanceOf<48, 48, 1>(),   InstanceOf<48, 96, 2>(),   InstanceOf<64, 64, 1>(),   InstanceOf<64, 128, 2>(),
    InstanceOf<64, 64, 2>(),   InstanceOf<64, 128, 1>(),  InstanceOf<96, 96, 1>(),   InstanceOf<96, 192, 2>(),
    InstanceOf<128, 128, 1>(), InstanceOf<128, 256, 2>(), InstanceOf<128, 128, 2>(), InstanceOf<128, 256, 1>(),
};

}  // namespace

AttentionTiling DiffPrefillTiling(const DiffSpec& spec) {
  return {spec.num_q1_heads / spec.num_kv_groups, kPrefillWarps * (spec.has_second_map() ? 8 : kMmaRows), kNoSplitSlots};
}

int DiffPrefill(const DiffAttentionArgs& args, CUstream_st* stream) {
  if (args.batch.num_rows == 0) return cudaSuccess;
  const auto matches = [&](const PrefillInstance& instance) {
    return instance.head_dim == args.spec.head_dim && instance.v_dim == args.spec.v_dim && instance.k_maps == args.spec.k_maps;
  };
  const auto* instance = std::find_if(std::begin(kInstances), std::end(kInstances), matches);
  if (instance == std::end(kInstances)) return cudaErrorInvalidValue;
  DeviceLimits limits;
  cudaError_t error = ReadLimits(&limits);
  if (error != cudaSuccess) return error;
  AttentionLaunch call = LaunchOf(args);
  const int64_t stages = limits.shared_bytes_max / static_cast<int64_t>(instance->page_bytes);
  if (stages < 1) return cudaErrorInvalidValue;
  call.num_stages = static_cast<int>(std::min<int64_t>(stages, kPrefillStagesMax));
  const size_t bytes = static_cast<size_t>(call.num_stages) * instance->page_bytes;
  error = cudaFuncSetAttribute(instance->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  const cudaLaunchConfig_t config = LaunchConfig(limits.multiprocessors, kPrefillThreads, bytes, stream);
  return cudaLaunchKernelEx(&config, instance->kernel, call);
}

}  // namespace diffserve::cuda
