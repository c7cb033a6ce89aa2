// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>

#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_prefill_sm90a_kernel.cuh"

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

  template <int kHeadDim, int kVDim, int kKMaps>
  static constexpr HopperInstance Of() {
    using Shape = HopperShape<kHeadDim, kVDim, kKMaps>;
    return {kHeadDim,
            kVDim,
            kKMaps,
            Shape::kMapPerWarpgroup,
            Shape::kPageBytes,
            PageRing<Shape>::SharedBytes(0),
            DiffPrefillSm90aKernel<kHeadDim, kVDim, kKMaps>,
            DiffPrefillSm90aQuantisedKernel<kHeadDim, kVDim, kKMaps>};
  }
};

const HopperInstance kShapes[] = {
    HopperInstance::Of<64, 64, 1>(),   HopperInstance::Of<64, 128, 2>(),
    HopperInstance::Of<64, 64, 2>(),   HopperInstance::Of<64, 128, 1>(),
    HopperInstance::Of<128, 128, 1>(), HopperInstance::Of<128, 256, 2>(),
    HopperInstance::Of<128, 128, 2>(), HopperInstance::Of<128, 256, 1>(),
};
const CodecInstances<HopperInstance> kTable[] = {{DType::kBFloat16, kShapes}};

const HopperInstance* Find(const DiffSpec& spec, const DeviceLimits& limits) {
  if (!limits.is_hopper) return nullptr;
  const HopperInstance* instance = FindInstance(kTable, spec, DType::kBFloat16);
  const bool fits = instance != nullptr && instance->NumStages(limits) >= kHopperStagesMin;
  return fits ? instance : nullptr;
}

// Over as many groups at a time as have room.
template <typename Launch>
Status OverWidenedPages(const DiffAttentionArgs<BFloat16>& args, const WidenedPages& to,
                        const Stream& stream, const Launch& launch) {
  const KvFormat image = ImageFormat(args.spec);
  const int64_t page_bytes = int64_t{to.num_pages} * image.PageBytes();
  const int64_t room = page_bytes > 0 ? static_cast<int64_t>(to.size_bytes) / page_bytes : 0;
  if (room == 0)
    return Status(StatusCode::kInternal, "no memory for attention's pages as bfloat16");
  const int num_groups = args.spec.num_kv_groups;
  GroupRange groups = {0, static_cast<int>(std::min<int64_t>(num_groups, room))};
  for (; groups.first < num_groups; groups.first += groups.count) {
    groups.count = std::min(groups.count, num_groups - groups.first);
    PagedKv widened = {to.memory, image};
    widened.format.num_groups = groups.count;
    DS_RETURN_IF_ERROR(WidenPages(args, groups, to, widened, stream));
    DS_RETURN_IF_ERROR(launch(widened, groups));
  }
  return Status();
}

}  // namespace

int HopperPrefillQueries(const DiffSpec& spec, const DeviceLimits& limits) {
  const HopperInstance* instance = Find(spec, limits);
  if (instance == nullptr) return 0;
  const bool paired = spec.k_maps == 1 && spec.has_second_map();
  return instance->map_per_warpgroup || paired ? kWarpgroupRows : 2 * kWarpgroupRows;
}

Status LaunchHopperPrefill(const DiffAttentionArgs<BFloat16>& args,
                           const AttentionSchedule& schedule, const DeviceLimits& limits,
                           const Stream& stream) {
  const HopperInstance* instance = Find(args.spec, limits);
  if (instance == nullptr) return NoKernel();
  const int64_t stages = instance->NumStages(limits);
  AttentionLaunch call = LaunchOf(args, schedule, static_cast<int>(stages));
  const auto launch = [&] {
    return LaunchAttention("prefill attention",
                           args.logit_quant.is_on() ? instance->quantised_kernel : instance->kernel,
                           {.grid = dim3(static_cast<unsigned>(limits.multiprocessors)),
                            .threads = dim3(kHopperThreads),
                            .shared_bytes = static_cast<size_t>(stages) * instance->page_bytes +
                                            instance->other_bytes},
                           stream, call);
  };
  const KvCodec& codec = args.kv.format.codec;
  if (codec.scale_bits == 0) return launch();
  const WidenedPages& to = schedule.widened;
  call.rounds_q = codec.has_int8_k();
  return OverWidenedPages(args, to, stream, [&](const PagedKv& widened, const GroupRange& groups) {
    call.kv = widened;
    call.batch.pages = to.ids - to.first_page;
    call.first_group = groups.first;
    call.num_groups = groups.count;
    return launch();
  });
}

}  // namespace diffserve::cuda
