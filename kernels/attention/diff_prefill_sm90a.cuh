// SPDX-License-Identifier: Apache-2.0
// The kernel of DiffPrefill for Hopper (sm_90a), for head widths of 64 and 128.
//
// A thread block takes a tile of query rows and a group, and walks the pages from the first to the
// last that any of them sees. One warp fetches the pages into a ring in shared memory. wgmma reads
// a page's numbers as they lie: K along its rows, V across them. Pages of codes are widened before
// (widen_pages.cuh). Two warpgroups of 64 accumulator rows compute, with q and p in registers.
// While p V of one step runs, the scores of the next are computed and weighted. The meaning of the
// rows depends on the shape:
//   k_maps 1: 64 queries of one map. With a second map rows 0-7 of each warp are queries and rows
//   8-15 the same queries of map 2, so that V is multiplied once for both.
//   k_maps 2, heads of 64: 64 queries; a warpgroup holds the outputs of both
//   maps and alternates between the maps.
//   k_maps 2, heads of 128: both warpgroups take the same 64 queries, the first for map 1, the
//   second for map 2. At the end the second hands its output over.
// In the first two cases a thread holds the same columns of both maps of a query, so the
// subtraction needs no exchange.
//
// A row's chain of operations goes by pages of 64 slots. The tile's other rows add only pages whose
// weights are all 0 and which leave the maximum unchanged. These change no bit, provided that the
// hardware adds zeros exactly.
//
// Quantised logits whose codes need the whole row take two walks. The first reads only K, for the
// extents of the rows. Codes per tile need no such walk, as a page is a tile.
//
// Limits by arithmetic, where a step is one map's 64 rows by one page (4096 FLOP per cycle and
// multiprocessor): (64, 128, 2) takes 384 cycles of wgmma and 256 of exponentials; per cycle of
// wgmma it reads 64 bytes of shared memory and fills 21. (128, 256, 2) takes 768 and 256, reads 64
// and fills 43, of 128 bytes per cycle. From L2: 192 and 96 FLOP per byte.
#pragma once

#include "kernels/attention/diff_prefill_sm90a_pages.cuh"
#include "kernels/base/cuda/wgmma.cuh"

namespace diffserve::cuda {

inline constexpr int kHopperThreads = 3 * kWarpgroupThreads;  // one warpgroup fetches, two compute

// The state of one of a thread's two rows in a warpgroup, for one map.
struct PrefillRow {
  bool exists;
  const uint16_t* q;
  int num_slots;     // it attends to the slots of its window before this one
  int64_t row_head;  // index in the output
};

__device__ __forceinline__ PrefillRow PrefillRowOf(const AttentionLaunch& call,
                                                   const QueryTile& part, int query, bool second) {
  const int heads = call.tiling.heads_per_group;
  const bool exists = query < part.num_queries;
  const int index = part.first_query + (exists ? query : 0);
  const int num_q1_heads = call.finish.num_q1_heads;
  const int head = (call.first_group + part.group) * heads + index % heads;
  const int q_head = second ? num_q1_heads + head / (num_q1_heads / call.num_q2_heads) : head;
  const int64_t row = int64_t{part.sequence.first_row} + index / heads;
  return {exists, call.q + (row * (num_q1_heads + call.num_q2_heads) + q_head) * call.head_dim,
          exists ? part.sequence.position + index / heads + 1 : part.num_slots,
          row * num_q1_heads + head};
}

// A page as a part of a tile sees it.
struct MaskedPage {
  int first_slot;
  bool masked;  // some query does not attend to all of its slots

  __device__ __forceinline__ static MaskedPage Of(const UnmaskedSlots& unmasked, int first_slot) {
    return {first_slot, !unmasked.Hold(first_slot, kImagePageSize)};
  }
};

// One warpgroup's softmaxes of 64 rows. A thread has two of them: rows lane / 4 and lane / 4 + 8 of
// its warp's 16.
template <typename Shape, bool kQuantised>
struct PrefillWarpgroup {
  static constexpr int kOutputs = Shape::kOutputs;

  uint32_t q[kOutputs][Shape::kKSteps][4];
  float scores[kImagePageSize / 2];
  uint32_t p[Shape::kVSteps][4];
  float o[kOutputs][Shape::kVDim / 2];
  float max[kOutputs][2];  // of raw scores
  float sum[kOutputs][2];  // this lane's part
  int warpgroup;           // 0 or 1
  int warp;                // in the warpgroup
  int lane;

  __device__ __forceinline__ void FindPlace() {
    const int thread = ThreadAgain();
    warp = thread / 32 % 4;
    lane = thread % 32;
  }

  // Whether rows 8-15 of each warp are map 2 of the queries in rows 0-7.
  __device__ __forceinline__ static bool Paired(const AttentionLaunch& call) {
    return Shape::kKMaps == 1 && call.finish.has_second_map;
  }
  __device__ __forceinline__ QueryTile Part(const AttentionLaunch& call,
                                            const QueryTile& tile) const {
    if (Shape::kMapPerWarpgroup) return tile;
    const int count = Paired(call) ? kWarpgroupRows / 2 : kWarpgroupRows;
    return PartOf(call, tile, warpgroup * count, count);
  }
  __device__ __forceinline__ PrefillRow Row(const AttentionLaunch& call, const QueryTile& part,
                                            int half, int output) const {
    if (Paired(call)) return PrefillRowOf(call, part, 8 * warp + lane / 4, half == 1);
    const bool second = Shape::kMapPerWarpgroup ? warpgroup == 1 : output == 1;
    return PrefillRowOf(call, part, 16 * warp + lane / 4 + 8 * half, second);
  }

  __device__ __forceinline__ void Begin(const AttentionLaunch& call, const PageRing<Shape>& ring,
                                        const QueryTile& part) {
#pragma unroll
    for (int output = 0; output < kOutputs; ++output) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const PrefillRow row = Row(call, part, half, output);
        if (output == 0 && lane % 4 == 0) EndOfRow(ring, half) = row.num_slots;
        max[output][half] = kMinusInfinity;
        sum[output][half] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * Shape::kKSteps; ++i) {
          const int dim = 8 * i + lane % 4 * 2;
          q[output][i / 2][i % 2 * 2 + half] = row.exists
                                                   ? *reinterpret_cast<const uint32_t*>(row.q + dim)
                                                   : 0;
        }
        if (call.rounds_q) RoundToCodes(q[output], half);
      }
#pragma unroll
      for (int i = 0; i < Shape::kVDim / 2; ++i) o[output][i] = 0.0f;
    }
    __syncwarp();
  }

  // A row of q as int8 codes times their scale (int8_row.h).
  __device__ __forceinline__ static void RoundToCodes(uint32_t (&of_rows)[Shape::kKSteps][4],
                                                      int half) {
    float largest = 0.0f;
    float poison = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * Shape::kKSteps; ++i) {
      const uint32_t pair = of_rows[i / 4][i / 2 % 2 * 2 + half];
      const float number = BFloat16ToFloat(static_cast<uint16_t>(pair >> i % 2 * 16));
      largest = fmaxf(largest, fabsf(number));
      poison += number * 0.0f;
    }
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, bit));
      poison += __shfl_xor_sync(kAllLanes, poison, bit);
    }
    const Int8Row codes = Int8Row::Of(largest, poison);
#pragma unroll
    for (int i = 0; i < 2 * Shape::kKSteps; ++i) {
      uint32_t& pair = of_rows[i / 2][i % 2 * 2 + half];
      float numbers[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float number = BFloat16ToFloat(static_cast<uint16_t>(pair >> j * 16));
        numbers[j] = static_cast<float>(codes.CodeOf(number)) * codes.scale;
      }
      pair = PackBFloat16(numbers[0], numbers[1]);
    }
  }

  // Stage 1: scores of the slots. q K^T of the page's 64.
  template <int kOutput>
  __device__ __forceinline__ void IssueScores(uint32_t k) {
    const int map = Shape::kMapPerWarpgroup ? warpgroup : kOutput;
    const uint64_t operand = WgmmaOperand(k + static_cast<uint32_t>(map) * Shape::kKMapBytes, 0,
                                          8 * kImageRowBytes);
#pragma unroll
    for (int step = 0; step < Shape::kKSteps; ++step) {
      const int offset = step / 4 * static_cast<int>(kImageTileBytes) + step % 4 * 32;
      Wgmma<false>(scores, q[kOutput][step], WgmmaAdvance(operand, static_cast<uint32_t>(offset)),
                   step > 0);
    }
    WgmmaCommit();
  }

  // Called when all wgmma is done.
  template <int kOutput>
  __device__ __forceinline__ void WaitForValues() {
    WgmmaWait<0>();
    WgmmaHold(o[kOutput]);
#pragma unroll
    for (int step = 0; step < Shape::kVSteps; ++step) WgmmaHold(p[step]);
  }

  // The end of the slots that a row attends to, in shared memory: that costs less than registers.
  __device__ __forceinline__ int& EndOfRow(const PageRing<Shape>& ring, int half) const {
    const int row = 16 * warp + lane / 4 + 8 * half;
    return ring.RowEnds()[(Shape::kMapPerWarpgroup ? 0 : warpgroup) * kWarpgroupRows + row];
  }
  // The slots of a page that the thread's rows attend to: whether that of its i-th score is one.
  struct SeenSlots {
    int begin[2];
    int end[2];
    __device__ __forceinline__ bool Has(int i) const {
      const int slot = i / 4 * 8 + i % 2;
      return slot >= begin[i % 4 / 2] && slot < end[i % 4 / 2];
    }
  };
  __device__ __forceinline__ SeenSlots SeenOf(const AttentionLaunch& call,
                                              const PageRing<Shape>& ring, const MaskedPage& page) {
    if (!page.masked) return {{0, 0}, {kImagePageSize, kImagePageSize}};
    FindPlace();
    const int own = page.first_slot + lane % 4 * 2;
    SeenSlots seen;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      seen.end[half] = EndOfRow(ring, half) - own;
      seen.begin[half] = seen.end[half] - call.tiling.window;
    }
    return seen;
  }
  __device__ __forceinline__ void Mask(const AttentionLaunch& call, const PageRing<Shape>& ring,
                                       const MaskedPage& page) {
    if (!page.masked) return;
    const SeenSlots seen = SeenOf(call, ring, page);
#pragma unroll
    for (int i = 0; i < kImagePageSize / 2; ++i) {
      if (!seen.Has(i)) scores[i] = kMinusInfinity;
    }
  }

  __device__ __forceinline__ void Widen(float (&extents)[2], const AttentionLaunch& call,
                                        const PageRing<Shape>& ring, const MaskedPage& page) {
    const SeenSlots seen = SeenOf(call, ring, page);
#pragma unroll
    for (int i = 0; i < kImagePageSize / 2; ++i) {
      float& extent = extents[i % 4 / 2];
      if (seen.Has(i)) extent = call.logits.Widened(extent, scores[i]);
    }
  }
  // Combines what the four lanes of a row hold.
  __device__ __forceinline__ static void Join(float (&extents)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      extents[half] = fmaxf(extents[half], __shfl_xor_sync(kAllLanes, extents[half], 1));
      extents[half] = fmaxf(extents[half], __shfl_xor_sync(kAllLanes, extents[half], 2));
    }
  }
  // The extent of one of the thread's rows, if logits need their row.
  __device__ __forceinline__ float& RowExtent(const PageRing<Shape>& ring, int output,
                                              int half) const {
    const int row = 16 * warp + lane / 4 + 8 * half;
    return ring.Extents()[(2 * output + warpgroup) * kWarpgroupRows + row];
  }
  template <int kOutput>
  __device__ __forceinline__ void Quantise(const AttentionLaunch& call, const PageRing<Shape>& ring,
                                           const MaskedPage& page) {
    const ScoreQuant& quant = call.logits;
    float extents[2] = {quant.NoExtent(), quant.NoExtent()};
    if (quant.needs_row()) {
      extents[0] = RowExtent(ring, kOutput, 0);
      extents[1] = RowExtent(ring, kOutput, 1);
    } else {
      Widen(extents, call, ring, page);
      Join(extents);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ScoreCodes codes = ScoreCodes::Of(quant, extents[half]);
#pragma unroll
      for (int i = 2 * half; i < kImagePageSize / 2; i += 4) {
        scores[i] = codes.Quantised(scores[i]);
        scores[i + 1] = codes.Quantised(scores[i + 1]);
      }
    }
  }

  // Stage 2: maximum, p = exp(score - maximum). Relative to the maximum so far; p replaces the
  // scores; returns the factor for the output.
  template <int kOutput>
  __device__ __forceinline__ void Weigh(float scale_log2, float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = max[kOutput][half];
#pragma unroll
      for (int i = 2 * half; i < kImagePageSize / 2; i += 4)
        top = fmaxf(top, fmaxf(scores[i], scores[i + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      const float finite = FiniteMax(top);
      rescale[half] = Exp2((max[kOutput][half] - finite) * scale_log2);
      max[kOutput][half] = top;
      const float offset = finite * scale_log2;
      float added = 0.0f;
#pragma unroll
      for (int i = 2 * half; i < kImagePageSize / 2; i += 4) {
        scores[i] = Exp2(scores[i] * scale_log2 - offset);
        scores[i + 1] = Exp2(scores[i + 1] * scale_log2 - offset);
        added += scores[i] + scores[i + 1];
      }
      sum[kOutput][half] = sum[kOutput][half] * rescale[half] + added;
    }
  }

  // Stage 3: output += p V.
  template <int kOutput>
  __device__ __forceinline__ void IssueValues(uint32_t v) {
    const uint64_t operand = WgmmaOperand(v, kImageTileBytes, 8 * kImageRowBytes);
#pragma unroll
    for (int step = 0; step < Shape::kVSteps; ++step) {
      Wgmma<true>(o[kOutput], p[step],
                  WgmmaAdvance(operand, static_cast<uint32_t>(step) * 16 * kImageRowBytes), true);
    }
    WgmmaCommit();
  }

  // Rescales the output for the new maximum, and rounds p to bf16: the accumulators' fragments are
  // then the fragments of A.
  template <int kOutput>
  __device__ __forceinline__ void Apply(const float (&rescale)[2]) {
    if (__any_sync(kAllLanes, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < Shape::kVDim / 2; ++i) o[kOutput][i] *= rescale[i % 4 / 2];
    }
#pragma unroll
    for (int i = 0; i < kImagePageSize / 4; ++i)
      p[i / 4][i % 4] = PackBFloat16(scores[2 * i], scores[2 * i + 1]);
  }

  template <int kOutput>
  __device__ __forceinline__ void FirstStep(const AttentionLaunch& call,
                                            const PageRing<Shape>& ring, uint32_t k,
                                            const MaskedPage& page) {
    WgmmaFence();
    IssueScores<kOutput>(k);
    WgmmaWait<0>();
    WgmmaHold(scores);
    if constexpr (kQuantised) Quantise<kOutput>(call, ring, page);
    Mask(call, ring, page);
    float rescale[2];
    Weigh<kOutput>(call.scale_log2, rescale);
    Apply<kOutput>(rescale);
  }

  // p V of the previous step, for output kPrevious, runs while the scores of this one are weighted.
  // Quantised scores need its registers for codes, so then it is waited for.
  template <int kOutput, int kPrevious>
  __device__ __forceinline__ void Step(const AttentionLaunch& call, const PageRing<Shape>& ring,
                                       uint32_t k, uint32_t previous_v, const MaskedPage& page) {
    WgmmaFence();
    IssueScores<kOutput>(k);
    IssueValues<kPrevious>(previous_v);
    WgmmaWait<1>();
    WgmmaHold(scores);
    if constexpr (kQuantised) {
      WaitForValues<kPrevious>();
      Quantise<kOutput>(call, ring, page);
    }
    Mask(call, ring, page);
    float rescale[2];
    Weigh<kOutput>(call.scale_log2, rescale);
    if constexpr (!kQuantised) WaitForValues<kPrevious>();
    Apply<kOutput>(rescale);
  }

  template <int kOutput>
  __device__ __forceinline__ void LastStep(uint32_t previous_v) {
    WgmmaFence();
    IssueValues<kOutput>(previous_v);
    WaitForValues<kOutput>();
  }

  template <int kOutput>
  __device__ __forceinline__ void WidenByK(float (&extents)[2], uint32_t k,
                                           const AttentionLaunch& call, const PageRing<Shape>& ring,
                                           const MaskedPage& page) {
    WgmmaFence();
    IssueScores<kOutput>(k);
    WgmmaWait<0>();
    WgmmaHold(scores);
    Widen(extents, call, ring, page);
  }

  __device__ __forceinline__ void ReleaseStage(const PageRing<Shape>& ring, int stage) const {
    if (ElectedLane()) BarrierArrive(ring.Empty(stage));
  }

  __device__ __forceinline__ void StreamPages(const AttentionLaunch& call,
                                              const PageRing<Shape>& ring, const QueryTile& part,
                                              RingPosition& at);
  // A walk over only K, for logits that need their row.
  __device__ __forceinline__ void FindExtents(const AttentionLaunch& call,
                                              const PageRing<Shape>& ring, const QueryTile& part,
                                              RingPosition& at);
  // Skips the tile's pages after the part's.
  __device__ __forceinline__ void SkipPages(const PageRing<Shape>& ring, int count,
                                            RingPosition& at) const {
    for (; count > 0; --count) {
      BarrierWait(ring.KFull(at.stage), at.parity);
      BarrierWait(ring.VFull(at.stage), at.parity);
      __syncwarp();  // a lane two phases late would wait forever
      ReleaseStage(ring, at.stage);
      at.Advance(ring.num_stages);
    }
  }
  __device__ __forceinline__ void SubtractMaps(const AttentionLaunch& call, const QueryTile& part);
  __device__ __forceinline__ void Send(const PageRing<Shape>& ring) const;
  __device__ __forceinline__ void SubtractReceived(const PageRing<Shape>& ring);
  __device__ __forceinline__ void WriteRow(const AttentionFinish& finish, const PrefillRow& row,
                                           int half) const;
  __device__ __forceinline__ void Finish(const AttentionLaunch& call, const PageRing<Shape>& ring,
                                         const QueryTile& part);
};

template <typename Shape, bool kQuantised>
__device__ __forceinline__ void PrefillWarpgroup<Shape, kQuantised>::StreamPages(
    const AttentionLaunch& call, const PageRing<Shape>& ring, const QueryTile& part,
    RingPosition& at) {
  constexpr int kLast = kOutputs - 1;
  if (part.end_slot <= part.first_slot) return;
  const UnmaskedSlots unmasked = UnmaskedSlots::Of(call, part);
  MaskedPage page = MaskedPage::Of(unmasked, part.first_slot);
  BarrierWait(ring.KFull(at.stage), at.parity);
  FirstStep<0>(call, ring, ring.K(at.stage), page);
  for (;;) {
    const int stage = at.stage;
    BarrierWait(ring.VFull(stage), at.parity);
    if constexpr (kOutputs == 2) Step<1, 0>(call, ring, ring.K(stage), ring.V(stage), page);
    at.Advance(ring.num_stages);
    page = MaskedPage::Of(unmasked, page.first_slot + kImagePageSize);
    if (page.first_slot >= part.end_slot) {
      LastStep<kLast>(ring.V(stage));
      return ReleaseStage(ring, stage);
    }
    BarrierWait(ring.KFull(at.stage), at.parity);
    Step<0, kLast>(call, ring, ring.K(at.stage), ring.V(stage), page);
    ReleaseStage(ring, stage);
  }
}

template <typename Shape, bool kQuantised>
__device__ __forceinline__ void PrefillWarpgroup<Shape, kQuantised>::FindExtents(
    const AttentionLaunch& call, const PageRing<Shape>& ring, const QueryTile& part,
    RingPosition& at) {
  float extents[kOutputs][2];
#pragma unroll
  for (int i = 0; i < 2 * kOutputs; ++i) extents[i / 2][i % 2] = call.logits.NoExtent();
  const UnmaskedSlots unmasked = UnmaskedSlots::Of(call, part);
  for (int slot = part.first_slot; slot < part.end_slot; slot += kImagePageSize) {
    const MaskedPage page = MaskedPage::Of(unmasked, slot);
    BarrierWait(ring.KFull(at.stage), at.parity);
    WidenByK<0>(extents[0], ring.K(at.stage), call, ring, page);
    if constexpr (kOutputs == 2) WidenByK<1>(extents[1], ring.K(at.stage), call, ring, page);
    ReleaseStage(ring, at.stage);
    at.Advance(ring.num_stages);
  }
  __syncwarp();
#pragma unroll
  for (int output = 0; output < kOutputs; ++output) {
    Join(extents[output]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane % 4 == 0) RowExtent(ring, output, half) = extents[output][half];
    }
  }
  __syncwarp();
}

}  // namespace diffserve::cuda
