// SPDX-License-Identifier: Apache-2.0
// What attention on a GPU needs besides its arguments: a plan that cuts the work into items, and
// memory for partial results. The host makes the plan.
//
// Decode is for few query rows per sequence (and correct for any number). It reads each page's K1,
// K2 and V once for up to 8 query rows of a group (16 without a second map), in splits of 256
// slots or more. Prefill is for chunks of a prompt: 64 or 128 query rows of a group at a time,
// without splits. Their chains of operations differ, so a row's bits repeat only within the same
// kernel. Hopper has its own prefill kernels for head widths of 64 and 128; their bits differ from
// the portable kernels'.
//
// The query rows of one sequence and group are its tokens times the group's signal heads, token by
// token. They are cut into tiles of rows and, for decode, the sequence's slots into splits. A work
// item is one (sequence, tile, split), for every group. Splits follow absolute slots, and their
// size the number of slots that a row attends to: a row's splits, and the order in which they are
// merged, depend only on its position. Splits wholly before the window of a sequence's rows have no
// items.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/attention_window.h"
#include "kernels/attention/diff_spec.h"
#include "kernels/attention/kv_format.h"
#include "kernels/attention/paged_batch.h"
#include "kernels/base/cuda/device.h"
#include "kernels/base/host_device.h"
#include "kernels/base/status.h"

namespace diffserve::cuda {

class Stream;

inline constexpr int kImagePageSize = kPageSize;
inline constexpr int kSplitSlotsMin = 256;
inline constexpr int kSplitSlotsMax = 2048;
inline constexpr int kSplitPagesMax = kSplitSlotsMax / kImagePageSize;
// Values of AttentionTiling::split_slots.
inline constexpr int kSplitsByLength = 0;      // SplitSlotsOf
inline constexpr int kNoSplitSlots = 1 << 30;  // one split

// Slots per split of a row that attends to `length` slots. Small splits let few sequences fill the
// device. But each split's results are written and read again, so long rows have larger ones.
DIFFSERVE_HOST_DEVICE constexpr int SplitSlotsOf(int length) {
  return kSplitSlotsMin << ((length > 4096 ? 1 : 0) + (length > 16384 ? 1 : 0) +
                            (length > 65536 ? 1 : 0));
}
// How many tokens from `position` on have splits of one size, whatever the window.
constexpr int TokensOfOneSplitSize(int position) {
  for (const int length : {4096, 16384, 65536}) {
    if (position < length) return length - position;
  }
  return kNoSplitSlots;
}

// All that a thread block must know of an item, in one load: each further load would have to wait
// for it.
struct alignas(16) AttentionItem {
  // The sequence's, as in DeviceSequence.
  int32_t first_row;
  int32_t num_tokens;
  int32_t position;
  int32_t first_page;
  int32_t tile;
  int32_t num_slots;   // up to the last slot that some row of the tile attends to
  int32_t first_slot;  // of the split, or of its first page that some row attends to
  int32_t end_slot;    // <= first_slot: no row of the tile attends to a slot of the split
};
static_assert(sizeof(AttentionItem) == 32);

// Where the items of a plan are.
struct alignas(16) AttentionPlanHead {
  int32_t first_item = 0;  // of AttentionPlan::items
  int32_t num_items = 0;
  // Not 0: no kernel of the step writes a slot before an entry's position.
  int32_t keeps_earlier_slots = 0;
  int32_t unused = 0;
};

// Device memory. A graph has these addresses; both the items' place and their number may differ
// each time that it runs.
struct AttentionPlan {
  const AttentionPlanHead* head = nullptr;  // [1]
  const AttentionItem* items = nullptr;
};

// Splits [first, first + count).
struct SplitRange {
  int first;
  int count;
};

struct AttentionTiling {
  int heads_per_group = 1;  // signal heads
  int rows_per_tile = 1;
  int split_slots = kSplitsByLength;
  int window = kWholeContext;  // slots that a query sees

  bool is_decode() const { return split_slots != kNoSplitSlots; }
  // The same for all rows of an entry. Its first row decides, so an entry whose rows differ must be
  // cut (TokensOfOneSplitSize).
  DIFFSERVE_HOST_DEVICE int SplitSlots(const DeviceSequence& sequence) const {
    if (split_slots != kSplitsByLength) return split_slots;
    return SplitSlotsOf(sequence.position < window ? sequence.position + 1 : window);
  }
  DIFFSERVE_HOST_DEVICE int NumTiles(int num_tokens) const {
    return (num_tokens * heads_per_group + rows_per_tile - 1) / rows_per_tile;
  }
  DIFFSERVE_HOST_DEVICE int TileOf(int row, int head) const {
    return (row * heads_per_group + head) / rows_per_tile;
  }
  // Splits up to slot `num_slots` of the sequence.
  DIFFSERVE_HOST_DEVICE int NumSplits(const DeviceSequence& sequence, int num_slots) const {
    const int slots = SplitSlots(sequence);
    return (num_slots + slots - 1) / slots;
  }
  // Number of slots up to the last one that some row of the tile attends to.
  DIFFSERVE_HOST_DEVICE int NumSlots(const DeviceSequence& sequence, int tile) const {
    const int last = (tile + 1) * rows_per_tile - 1;
    const int row = last / heads_per_group < sequence.num_tokens ? last / heads_per_group
                                                                 : sequence.num_tokens - 1;
    return sequence.position + row + 1;
  }
  // The first slot that some row of the tile attends to.
  DIFFSERVE_HOST_DEVICE int FirstSlot(const DeviceSequence& sequence, int tile) const {
    return FirstSlotSeen(sequence.position + tile * rows_per_tile / heads_per_group, window);
  }
  // The first split of a sequence that has items.
  DIFFSERVE_HOST_DEVICE int FirstSplit(const DeviceSequence& sequence) const {
    return FirstSlotSeen(sequence.position, window) / SplitSlots(sequence);
  }
  // The splits that some row of the tile attends to. Their items follow one another.
  DIFFSERVE_HOST_DEVICE SplitRange SplitsOfTile(const DeviceSequence& sequence, int tile) const {
    const int first = FirstSlot(sequence, tile) / SplitSlots(sequence);
    return {first, NumSplits(sequence, NumSlots(sequence, tile)) - first};
  }
  // The splits that one of the sequence's rows attends to.
  DIFFSERVE_HOST_DEVICE SplitRange SplitsOfRow(const DeviceSequence& sequence, int row) const {
    const int position = sequence.position + row;
    const int first = FirstSlotSeen(position, window) / SplitSlots(sequence);
    return {first, NumSplits(sequence, position + 1) - first};
  }
  // Items per tile of a sequence.
  DIFFSERVE_HOST_DEVICE int ItemsPerTile(const DeviceSequence& sequence) const {
    return NumSplits(sequence, sequence.position + sequence.num_tokens) - FirstSplit(sequence);
  }
};

// Appends the items of these entries, ordered by entry, then tile, then split. Entries without
// tokens have none.
void PlanAttention(std::span<const DeviceSequence> sequences, const AttentionTiling& tiling,
                   std::vector<AttentionItem>* items);

// Memory in which prefill has a batch's pages as bfloat16, where WidenedPageBytes is not 0.
struct WidenedPages {
  std::byte* memory = nullptr;  // REQUIRES: the batch's pages of one group have room
  size_t size_bytes = 0;
  int32_t* ids = nullptr;  // [num_pages]
  // Entries of PagedBatch::pages, among which are all of the batch's.
  int first_page = 0;
  int num_pages = 0;
};

// All pointers are device memory.
struct AttentionSchedule {
  AttentionTiling tiling;         // DiffDecodeTiling or DiffPrefillTiling
  AttentionPlan plan;             // PlanAttention's, for this batch and tiling
  float* partials = nullptr;      // decode: [DiffDecodePartialFloats()], one layer's at a time
  uint32_t* counters = nullptr;   // decode: [DiffDecodeCounters()], zeros before and after a layer
  float* extents = nullptr;       // decode with quantised logits: [DiffDecodeExtentFloats()]
  WidenedPages widened;           // prefill
  bool allow_bulk_copies = true;  // false: cp.async on every device
  // Decode: the operation before on the stream is a kernel. Decode may then start before that one
  // has ended. REQUIRES then: no kernel of the step writes the plan or the batch.
  bool follows_kernel = false;
};

// The page format that the kernels read.
inline KvFormat ImageFormat(const DiffSpec& spec, DType dtype = DType::kBFloat16) {
  return KvFormat::Of(spec, kImagePageSize, dtype, KvArrangement::kImage);
}
// Returns nullptr, or the reason why no kernel takes this spec and these pages.
const char* DiffAttentionUnsupported(const DiffSpec& spec, const KvFormat& format);

// For batches in which no sequence has more than `rows_per_sequence_max` rows, and layers with this
// DiffAttentionArgs::window. No row's bits depend on the tiling.
AttentionTiling DiffDecodeTiling(const DiffSpec& spec, int rows_per_sequence_max, int window = 0);
size_t DiffDecodePartialFloats(const DiffSpec& spec, const AttentionTiling& tiling,
                               int64_t num_items);
size_t DiffDecodeCounters(const DiffSpec& spec, int64_t num_items);
size_t DiffDecodeExtentFloats(const DiffSpec& spec, const AttentionTiling& tiling,
                              int64_t num_items);
// For the current device, which must be the one DiffAttention runs on. `allow_bulk_copies` as in
// AttentionSchedule.
AttentionTiling DiffPrefillTiling(const DiffSpec& spec, bool allow_bulk_copies = true,
                                  int window = 0);
// Likewise the bytes that prefill needs to widen a page of codes of one group. 0: it reads codes.
size_t WidenedPageBytes(const DiffSpec& spec, bool allow_bulk_copies = true);

// Maximum number of splits of the entry [position, position + num_tokens) through any window.
int AttentionSplitsMax(const AttentionTiling& tiling, int position, int num_tokens);

}  // namespace diffserve::cuda
