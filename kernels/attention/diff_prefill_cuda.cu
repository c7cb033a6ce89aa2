// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_prefill.cuh"

namespace diffserve::cuda {
namespace {

struct PrefillInstance {
  int head_dim;
  int v_dim;
  int k_maps;
  int64_t page_bytes;
  void (*kernel)(AttentionLaunch);

  template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
  static constexpr PrefillInstance Of() {
    return {kHeadDim, kVDim, kKMaps,
            ImageOf<Codec, kHeadDim, kVDim, kKMaps>(kImagePageSize).PageBytes(),
            DiffPrefillKernel<Codec, kHeadDim, kVDim, kKMaps>};
  }
};

const CodecInstances<PrefillInstance> kTable[] = {
    {DType::kBFloat16, kHeadShapes<BFloat16Codec, PrefillInstance>},
    {DType::kInt8, kHeadShapes<Int8Codec, PrefillInstance>},
    {DType::kInt8KInt4V, kHeadShapes<Int8KInt4VCodec, PrefillInstance>},
    {DType::kInt4, kHeadShapes<Int4Codec, PrefillInstance>},
    {DType::kFp8E4M3, kHeadShapes<Fp8E4M3Codec, PrefillInstance>},
};

int HopperQueries(const DiffSpec& spec, const DeviceLimits& limits, bool allow_bulk_copies) {
  return allow_bulk_copies ? HopperPrefillQueries(spec, limits) : 0;
}

AttentionTiling TilingOf(const DiffSpec& spec, const DeviceLimits& limits, bool allow_bulk_copies,
                         int window) {
  const int hopper_queries = HopperQueries(spec, limits, allow_bulk_copies);
  const int portable_queries = kPrefillWarps * (spec.has_second_map() ? 8 : kMmaRows);
  return {spec.num_q1_heads / spec.num_kv_groups,
          hopper_queries > 0 ? hopper_queries : portable_queries, kNoSplitSlots,
          WindowSlots(window)};
}

Status LaunchPortable(const DiffAttentionArgs<BFloat16>& args, const AttentionSchedule& schedule,
                      const DeviceLimits& limits, const Stream& stream) {
  const PrefillInstance* instance = FindInstance(kTable, args.spec, args.kv.format.codec.dtype);
  if (instance == nullptr) return NoKernel();
  const bool quantises = args.logit_quant.is_on();
  const int64_t other_bytes = quantises ? kPrefillExtentBytes : 0;
  const int64_t stages = std::min<int64_t>(
      (limits.shared_bytes_max - other_bytes) / instance->page_bytes, kPrefillStagesMax);
  if (stages < 1) return NoKernel();
  const auto kernel = quantises ? FindQuantisedPrefill(args.spec, args.kv.format.codec.dtype)
                                : instance->kernel;
  return LaunchAttention(
      "prefill attention", kernel,
      {.grid = dim3(static_cast<unsigned>(limits.multiprocessors)),
       .threads = dim3(kPrefillThreads),
       .shared_bytes = static_cast<size_t>(stages * instance->page_bytes + other_bytes)},
      stream, LaunchOf(args, schedule, static_cast<int>(stages)));
}

}  // namespace

AttentionTiling DiffPrefillTiling(const DiffSpec& spec, bool allow_bulk_copies, int window) {
  DeviceLimits limits;
  if (!ReadLimits(&limits).ok()) limits = {};  // no device: DiffAttention reports it
  return TilingOf(spec, limits, allow_bulk_copies, window);
}

size_t WidenedPageBytes(const DiffSpec& spec, bool allow_bulk_copies) {
  DeviceLimits limits;
  if (!ReadLimits(&limits).ok()) limits = {};
  if (HopperQueries(spec, limits, allow_bulk_copies) == 0) return 0;
  return static_cast<size_t>(ImageFormat(spec).PageBytes());
}

Status DiffPrefill(const DiffAttentionArgs<BFloat16>& args, const AttentionSchedule& schedule,
                   const Stream& stream) {
  DeviceLimits limits;
  DS_RETURN_IF_ERROR(ReadLimits(&limits));
  const bool allow_bulk_copies = schedule.allow_bulk_copies;
  const AttentionTiling tiling = TilingOf(args.spec, limits, allow_bulk_copies, args.window);
  if (schedule.tiling.rows_per_tile != tiling.rows_per_tile) return NoKernel();
  const bool has_hopper = HopperQueries(args.spec, limits, allow_bulk_copies) > 0;
  return (has_hopper ? LaunchHopperPrefill : LaunchPortable)(args, schedule, limits, stream);
}

}  // namespace diffserve::cuda
