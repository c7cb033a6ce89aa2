// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <iterator>

#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_prefill_sm90a_finish.cuh"

namespace diffserve::cuda {
namespace {

struct HopperInstance {
  int head_dim;
  int v_dim;
  int k_maps;
  bool map_per_warpgroup;
  size_t page_bytes;
  size_t other_bytes;  // shared memory besides the stages
  void (*kernel)(AttentionLaunch);
  void (*quantised_kernel)(AttentionLaunch);

  int64_t NumStages(const DeviceLimits& limits) const {
    const int64_t for_pages = int64_t{limits.shared_bytes_max} - static_cast<int64_t>(other_bytes);
    return std::min<int64_t>(for_pages / static_cast<int64_t>(page_bytes), kHopperStagesMax);
  }
};

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
constexpr HopperInstance HopperInstanceOf() {
  using Shape = HopperShape<Codec, kHeadDim, kVDim, kKMaps>;
  return {kHeadDim,
          kVDim,
          kKMaps,
          Shape::kMapPerWarpgroup,
          Shape::kPageBytes,
          PageRing<Shape>::SharedBytes(0),
          DiffPrefillSm90aKernel<Codec, kHeadDim, kVDim, kKMaps>,
          DiffPrefillSm90aQuantisedKernel<Codec, kHeadDim, kVDim, kKMaps>};
}

// (128, 128, 2) stays with the portable kernel: two outputs and the queries of both maps exceed a
// thread's registers.
template <typename Codec>
const HopperInstance kInstancesOf[] = {
    HopperInstanceOf<Codec, 64, 64, 1>(),   HopperInstanceOf<Codec, 64, 128, 2>(),
    HopperInstanceOf<Codec, 64, 64, 2>(),   HopperInstanceOf<Codec, 64, 128, 1>(),
    HopperInstanceOf<Codec, 128, 128, 1>(), HopperInstanceOf<Codec, 128, 256, 2>(),
    HopperInstanceOf<Codec, 128, 256, 1>(),
};
const CodecInstances<HopperInstance> kTable[] = {
    {DType::kBFloat16, kInstancesOf<BFloat16Codec>},
};

const HopperInstance* Find(const DiffSpec& spec, DType dtype, const DeviceLimits& limits) {
  if (!limits.has_bulk_copies) return nullptr;
  const HopperInstance* instance = FindInstance(kTable, spec, dtype);
  const bool fits = instance != nullptr && instance->NumStages(limits) >= kHopperStagesMin;
  return fits ? instance : nullptr;
}

}  // namespace

int HopperPrefillQueries(const DiffSpec& spec, DType dtype, const DeviceLimits& limits) {
  const HopperInstance* instance = Find(spec, dtype, limits);
  if (instance == nullptr) return 0;
  const bool paired = spec.k_maps == 1 && spec.has_second_map();
  return instance->map_per_warpgroup || paired ? kWarpgroupRows : 2 * kWarpgroupRows;
}

Status LaunchHopperPrefill(const DiffAttentionArgs<BFloat16>& args,
                           const AttentionSchedule& schedule, const DeviceLimits& limits,
                           const Stream& stream) {
  const HopperInstance* instance = Find(args.spec, args.kv.format.codec.dtype, limits);
  if (instance == nullptr) return NoKernel();
  const int64_t stages = instance->NumStages(limits);
  return LaunchAttention(
      "prefill attention", args.logit_quant.is_on() ? instance->quantised_kernel : instance->kernel,
      {.grid = dim3(static_cast<unsigned>(limits.multiprocessors)),
       .threads = dim3(kHopperThreads),
       .shared_bytes = static_cast<size_t>(stages) * instance->page_bytes + instance->other_bytes},
      stream, LaunchOf(args, schedule, static_cast<int>(stages)));
}

}  // namespace diffserve::cuda
