// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <string>

#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_decode.cuh"
#include "kernels/attention/diff_decode_pages.cuh"

namespace diffserve::cuda {
namespace {

using DecodeKernel = void (*)(AttentionLaunch);

struct DecodeInstance {
  int head_dim;
  int v_dim;
  int k_maps;
  uint32_t strip_bytes;
  uint32_t page_bytes;
  DecodeKernel strips;    // cp.async
  DecodeKernel pages[2];  // sm_90; with one tile of columns and with two; nullptr: there are none

  template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
  static constexpr DecodeInstance Of() {
    return {kHeadDim,
            kVDim,
            kKMaps,
            KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize>::kBytes,
            DecodePage<Codec, kHeadDim, kVDim, kKMaps>::kBytes,
            DiffDecodeKernel<Codec, kHeadDim, kVDim, kKMaps>,
            {PagesKernel<Codec, kHeadDim, kVDim, kKMaps, 1>(),
             PagesKernel<Codec, kHeadDim, kVDim, kKMaps, 2>()}};
  }

  // For the head widths of published models; each pair of kernels is up to 0.3 MB.
  template <typename Codec, int kHeadDim, int kVDim, int kKMaps, int kTiles>
  static constexpr DecodeKernel PagesKernel() {
    if constexpr (kHeadDim == 64 || kHeadDim == 96 || kHeadDim == 128)
      return DiffDecodePagesKernel<Codec, kHeadDim, kVDim, kKMaps, kTiles>;
    return nullptr;
  }
};

const CodecInstances<DecodeInstance> kTable[] = {
    {DType::kBFloat16, kHeadShapes<BFloat16Codec, DecodeInstance>},
    {DType::kInt8, kHeadShapes<Int8Codec, DecodeInstance>},
    {DType::kInt8KInt4V, kHeadShapes<Int8KInt4VCodec, DecodeInstance>},
    {DType::kInt4, kHeadShapes<Int4Codec, DecodeInstance>},
    {DType::kFp8E4M3, kHeadShapes<Fp8E4M3Codec, DecodeInstance>},
};

// A kernel and its launch.
struct DecodeChoice {
  DecodeKernel kernel;
  int threads;
  int blocks;  // that share a multiprocessor
  int num_stages;
  size_t shared_bytes;
  bool may_start_early = false;  // it has a WaitForPrevious
};

// Two thread blocks share a multiprocessor if they can: one streams while the other merges. Then as
// many stages as fit.
template <typename Bytes>
void FitStages(int stages_min, int stages_max, size_t shared_bytes_max, const Bytes& bytes,
               DecodeChoice& choice) {
  const auto fits = [&](int blocks, int stages) {
    const size_t reserved = static_cast<size_t>(blocks - 1) * kReservedSharedBytes;
    return static_cast<size_t>(blocks) * bytes(stages) + reserved <= shared_bytes_max;
  };
  if (choice.blocks == 2 && !fits(2, std::max(2, stages_min))) choice.blocks = 1;
  choice.num_stages = stages_max;
  while (choice.num_stages > stages_min && !fits(choice.blocks, choice.num_stages))
    --choice.num_stages;
  choice.shared_bytes = bytes(choice.num_stages);
}

DecodeChoice ChooseStrips(const DecodeInstance& instance, const LogitQuant& quant,
                          size_t shared_bytes_max) {
  DecodeChoice choice = {instance.strips, kDecodeThreads, 2, 1, 0};
  const auto bytes = [&](int stages) {
    return DecodeSharedBytes(instance.strip_bytes, instance.v_dim, stages) +
           (quant.is_on() ? kDecodeExtentBytes : 0);
  };
  FitStages(1, kDecodeStagesMax, shared_bytes_max, bytes, choice);
  return choice;
}

// rows: of a tile, in both maps.
DecodeChoice ChoosePages(const DecodeInstance& instance, int rows, size_t shared_bytes_max) {
  const int tiles = rows <= kMmaColumns ? 1 : 2;
  DecodeChoice choice = {instance.pages[tiles - 1], kDecodePagesThreads,
                         DecodePagesBlocks(instance.page_bytes, instance.v_dim, tiles), 1, 0};
  const auto bytes = [&](int stages) {
    return DecodePagesSharedBytes(instance.page_bytes, instance.v_dim, tiles, stages);
  };
  FitStages(kDecodePageStagesMin, kDecodePageStagesMax, shared_bytes_max, bytes, choice);
  choice.may_start_early = true;
  return choice;
}

// Softmaxes: one per row, map and split.
size_t NumStates(const DiffSpec& spec, const AttentionTiling& tiling, int64_t num_items) {
  return static_cast<size_t>(num_items * spec.num_kv_groups * tiling.rows_per_tile *
                             (spec.has_second_map() ? 2 : 1));
}

}  // namespace

const char* DiffAttentionUnsupported(const DiffSpec& spec, const KvFormat& format) {
  if (format.page_size != kImagePageSize)
    return "the CUDA attention kernels need pages of 64 slots";
  if (std::ranges::find(kTable, format.codec.dtype, &CodecInstances<DecodeInstance>::dtype) ==
      std::end(kTable)) {
    return "the CUDA attention kernels take no pages of this dtype";
  }
  const DecodeInstance* instance = FindInstance(kTable, spec, format.codec.dtype);
  if (instance == nullptr)
    return "no CUDA attention kernel has this head_dim, v_dim and number of K maps";
  DeviceLimits limits;  // prefill needs no more than decode
  if (ReadLimits(&limits).ok()) {
    const auto most = static_cast<size_t>(limits.shared_bytes_max);
    if (ChooseStrips(*instance, {.bits = 8}, most).shared_bytes > most)
      return "this GPU's multiprocessors have too little shared memory for this head_dim and v_dim";
  }
  if (spec.num_kv_groups <= 0 || spec.num_q1_heads % spec.num_kv_groups != 0)
    return "the groups do not divide the signal heads";
  if (spec.has_second_map() &&
      (spec.num_q1_heads % spec.num_q2_heads != 0 || spec.num_q2_heads % spec.num_kv_groups != 0)) {
    return "the noise heads do not divide the signal heads, or the groups the noise heads";
  }
  if (spec.k_maps == 2 && !spec.has_second_map()) return "two K maps need noise heads";
  return nullptr;
}

AttentionTiling DiffDecodeTiling(const DiffSpec& spec, int rows_per_sequence_max, int window) {
  const int heads_per_group = spec.num_q1_heads / spec.num_kv_groups;
  const int64_t queries = int64_t{heads_per_group} * std::max(1, rows_per_sequence_max);
  const int rows = static_cast<int>(
      std::min<int64_t>(queries, spec.has_second_map() ? kMmaRows / 2 : kMmaRows));
  return {heads_per_group, rows, kSplitsByLength, WindowSlots(window)};
}

// A window may give a row fewer slots than the sequence has, and so smaller splits. Such a row's
// slots, and those of the entry's other rows, then begin inside a split.
int AttentionSplitsMax(const AttentionTiling& tiling, int position, int num_tokens) {
  const int end = position + num_tokens;
  const auto splits = [](int num_slots, int slots) { return (num_slots + slots - 1) / slots; };
  if (tiling.split_slots != kSplitsByLength) return splits(end, tiling.split_slots);
  int most = 0;
  for (int length = std::min(end, 4096);; length = std::min(end, 4 * length)) {
    const int slots = SplitSlotsOf(length);
    most = std::max(most, std::min(splits(end, slots), splits(length + num_tokens, slots) + 1));
    if (length == end) return most;
  }
}

size_t DiffDecodePartialFloats(const DiffSpec& spec, const AttentionTiling& tiling,
                               int64_t num_items) {
  return NumStates(spec, tiling, num_items) * static_cast<size_t>(spec.v_dim + 2);
}

size_t DiffDecodeCounters(const DiffSpec& spec, int64_t num_items) {
  return 1 + static_cast<size_t>(num_items * spec.num_kv_groups);
}

size_t DiffDecodeExtentFloats(const DiffSpec& spec, const AttentionTiling& tiling,
                              int64_t num_items) {
  return NumStates(spec, tiling, num_items) * kSplitPagesMax;
}

void PlanAttention(std::span<const DeviceSequence> sequences, const AttentionTiling& tiling,
                   std::vector<AttentionItem>* items) {
  for (const DeviceSequence& rows : sequences) {
    if (rows.num_tokens == 0) continue;
    const int split_slots = tiling.SplitSlots(rows);
    const int first_split = tiling.FirstSplit(rows), num_splits = tiling.ItemsPerTile(rows);
    const int num_tiles = tiling.NumTiles(rows.num_tokens);
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int num_slots = tiling.NumSlots(rows, tile);
      const int first_seen = tiling.FirstSlot(rows, tile) / kImagePageSize * kImagePageSize;
      for (int split = first_split; split < first_split + num_splits; ++split) {
        const int begin = split * split_slots;
        items->push_back({rows.first_row, rows.num_tokens, rows.position, rows.first_page, tile,
                          num_slots, std::max(begin, first_seen),
                          num_slots - begin < split_slots ? num_slots : begin + split_slots});
      }
    }
  }
}

Status DiffAttention(const DiffAttentionArgs<BFloat16>& args, const AttentionSchedule& schedule,
                     const Stream& stream) {
  if (args.batch.num_tokens == 0) return Status();
  if (args.window < 0 || schedule.tiling.window != WindowSlots(args.window)) {
    return Status(StatusCode::kInternal,
                  "attention's plan is for a window of " + std::to_string(schedule.tiling.window) +
                      " slots, the layer has one of " + std::to_string(args.window));
  }
  return (schedule.tiling.is_decode() ? DiffDecode : DiffPrefill)(args, schedule, stream);
}

Status DiffDecode(const DiffAttentionArgs<BFloat16>& args, const AttentionSchedule& schedule,
                  const Stream& stream) {
  const DecodeInstance* instance = FindInstance(kTable, args.spec, args.kv.format.codec.dtype);
  if (instance == nullptr) return NoKernel();
  DeviceLimits limits;
  DS_RETURN_IF_ERROR(ReadLimits(&limits));
  const size_t shared_bytes_max = static_cast<size_t>(limits.shared_bytes_max);
  DecodeChoice choice = ChooseStrips(*instance, args.logit_quant, shared_bytes_max);
  if (limits.has_bulk_copies && schedule.allow_bulk_copies && !args.logit_quant.is_on() &&
      instance->pages[0] != nullptr) {
    const int rows = schedule.tiling.rows_per_tile * (args.spec.has_second_map() ? 2 : 1);
    const DecodeChoice pages = ChoosePages(*instance, rows, shared_bytes_max);
    if (pages.shared_bytes <= shared_bytes_max) choice = pages;
  }
  if (choice.shared_bytes > shared_bytes_max) return NoKernel();

  const AttentionLaunch call = LaunchOf(args, schedule, choice.num_stages);
  // The grid fits the device for any plan, so a graph of this launch serves every batch of these
  // sizes.
  const int resident = limits.multiprocessors * choice.blocks;
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(resident)),
                             .threads = dim3(static_cast<unsigned>(choice.threads)),
                             .shared_bytes = choice.shared_bytes,
                             .is_dependent = choice.may_start_early && schedule.follows_kernel};
  DecodeKernel kernel = choice.kernel;
  if (args.logit_quant.is_on()) {
    const QuantisedDecode quantised = FindQuantisedDecode(args.spec, args.kv.format.codec.dtype);
    kernel = quantised.decode;
    DS_RETURN_IF_ERROR(
        LaunchAttention("extents of attention logits", quantised.extents, shape, stream, call));
  }
  return LaunchAttention("decode attention", kernel, shape, stream, call);
}

}  // namespace diffserve::cuda
