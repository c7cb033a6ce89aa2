// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/diff_prefill_sm90a_table.cuh"

namespace diffserve::cuda {
namespace {

const CodecInstances<HopperInstance> kTable[] = {
    {DType::kBFloat16, kHopperShapes<BFloat16Codec>},
};

const HopperInstance* Find(const DiffSpec& spec, DType dtype, const DeviceLimits& limits) {
  if (!limits.is_hopper) return nullptr;
  const HopperInstance* instance = FindInstance(kTable, spec, dtype);
  if (instance == nullptr) instance = FindHopperCodes(spec, dtype);
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
