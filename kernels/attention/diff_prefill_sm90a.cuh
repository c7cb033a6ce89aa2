// The kernel of DiffPrefill for Hopper (sm_90a), for head widths of 64 and 128.
//
// A thread block takes a tile of query rows and a group, and walks the pages from slot 0 to the
// tile's last. One warp fetches the pages into a ring in shared memory, where a page, as it lies,
// is what wgmma reads: K along its rows, V across them. Two warpgroups of 64 accumulator rows
// compute, q and p in registers; while p V of one step runs, the scores of the next are made and
// weighed. What the rows are depends on the shape:
//   k_maps 1: 64 queries of one map; or, with a second map, in each warp rows 0-7 are queries and
//   rows 8-15 the same ones of map
//     2, so that V is multiplied once for both.
//   k_maps 2, v_dim up to 128: 64 queries; a warpgroup holds the outputs of both maps and takes the
//   maps by turns. k_maps 2, v_dim 256: both warpgroups take the same 64 queries, the first for map
//   1, the second for map 2, which hands its
//     output over in the end.
// A thread holds the same columns of both maps of a query, so the subtraction needs no exchange in
// the first two.
//
// A row's chain of operations is by pages of 64 slots from slot 0. What the tile's other rows add
// to it are pages of which every weight is 0 and the maximum stays: they change no bit, if the
// hardware adds zeros exactly.
//
// Limits by arithmetic, a step being one map's 64 rows by one page (4096 FLOP a cycle and
// multiprocessor): (64, 128, 2) takes 384 cycles of wgmma and 256 of the exponentials, reads 64
// bytes of shared memory a cycle of wgmma and fills 21; (128, 256, 2) takes 768 and 256, reads 64
// and fills 43, of 128 bytes a cycle. From L2, 192 and 96 FLOP a byte.
#pragma once

#include "kernels/attention/diff_prefill_sm90a_pages.cuh"
#include "kernels/base/cuda/wgmma.cuh"

namespace diffserve::cuda {

inline constexpr int kHopperThreads = 3 * kWarpgroupThreads;  // one warpgroup fetches, two compute
// Registers a thread: 128 * 24 + 256 * 240 is what 384 threads of 168 have.
inline constexpr int kFetchRegisters = 24;
inline constexpr int kComputeRegisters = 240;
// Named barriers of both warpgroups.
inline constexpr int kExchangeWritten = 1;
inline constexpr int kExchangeRead = 2;

// Of one of a thread's two rows in a warpgroup, and one map.
struct PrefillRow {
  bool exists;
  const uint16_t* q;
  int num_slots;     // it attends to slots 0 .. num_slots - 1
  int64_t row_head;  // of the output
};

__device__ __forceinline__ PrefillRow PrefillRowOf(const AttentionLaunch& call,
                                                   const QueryTile& part, int query, bool second) {
  const int heads = call.tiling.heads_per_group;
  const bool exists = query < part.num_queries;
  const int index = part.first_query + (exists ? query : 0);
  const int num_q1_heads = call.finish.num_q1_heads;
  const int head = part.group * heads + index % heads;
  const int q_head = second ? num_q1_heads + head / (num_q1_heads / call.num_q2_heads) : head;
  const int64_t row = int64_t{part.sequence.first_row} + index / heads;
  return {exists, call.q + (row * (num_q1_heads + call.num_q2_heads) + q_head) * call.head_dim,
          exists ? part.sequence.position + index / heads + 1 : part.num_slots,
          row * num_q1_heads + head};
}

// One warpgroup's softmaxes of 64 rows, two of them a thread's: lane / 4 and lane / 4 + 8 of its
// warp's 16.
template <typename Shape>
struct PrefillWarpgroup {
  static constexpr int kOutputs = Shape::kOutputs;

  uint32_t q[kOutputs][Shape::kKSteps][4];
  float scores[kImagePageSize / 2];
  uint32_t p[Shape::kVSteps][4];
  float o[kOutputs][Shape::kVDim / 2];
  float max[kOutputs][2];  // of raw scores
  float sum[kOutputs][2];  // this lane's part
  int num_slots[2];
  int warpgroup;  // 0 or 1
  int warp;       // in the warpgroup
  int lane;

  // Queries and their map in rows 8-15 of each warp are the same as in rows 0-7.
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

  __device__ __forceinline__ void Begin(const AttentionLaunch& call, const QueryTile& part) {
#pragma unroll
    for (int output = 0; output < kOutputs; ++output) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const PrefillRow row = Row(call, part, half, output);
        num_slots[half] = row.num_slots;
        max[output][half] = kMinusInfinity;
        sum[output][half] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * Shape::kKSteps; ++i) {
          const int dim = 8 * i + lane % 4 * 2;
          q[output][i / 2][i % 2 * 2 + half] = row.exists
                                                   ? *reinterpret_cast<const uint32_t*>(row.q + dim)
                                                   : 0;
        }
      }
#pragma unroll
      for (int i = 0; i < Shape::kVDim / 2; ++i) o[output][i] = 0.0f;
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

  // All wgmma is done.
  template <int kOutput>
  __device__ __forceinline__ void WaitForValues() {
    WgmmaWait<0>();
    WgmmaHold(o[kOutput]);
#pragma unroll
    for (int step = 0; step < Shape::kVSteps; ++step) WgmmaHold(p[step]);
  }

  __device__ __forceinline__ void Mask(int first_slot) {
#pragma unroll
    for (int i = 0; i < kImagePageSize / 2; ++i) {
      const int slot = first_slot + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (slot >= num_slots[i % 4 / 2]) scores[i] = kMinusInfinity;
    }
  }

  // Stage 2: maximum, p = exp(score - maximum). So far; in the place of scores; tells by what the
  // output must be multiplied.
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

  // The output for the new maximum, and p in bf16: the accumulators' fragments are, rounded, those
  // of A.
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
  __device__ __forceinline__ void FirstStep(uint32_t k, bool masked, float scale_log2) {
    WgmmaFence();
    IssueScores<kOutput>(k);
    WgmmaWait<0>();
    WgmmaHold(scores);
    if (masked) Mask(0);
    float rescale[2];
    Weigh<kOutput>(scale_log2, rescale);
    Apply<kOutput>(rescale);
  }

  // p V of the step before, for output kPrevious, runs while the scores of this one are weighed.
  template <int kOutput, int kPrevious>
  __device__ __forceinline__ void Step(uint32_t k, uint32_t previous_v, int first_slot, bool masked,
                                       float scale_log2) {
    WgmmaFence();
    IssueScores<kOutput>(k);
    IssueValues<kPrevious>(previous_v);
    WgmmaWait<1>();
    WgmmaHold(scores);
    if (masked) Mask(first_slot);
    float rescale[2];
    Weigh<kOutput>(scale_log2, rescale);
    WaitForValues<kPrevious>();
    Apply<kOutput>(rescale);
  }

  template <int kOutput>
  __device__ __forceinline__ void LastStep(uint32_t previous_v) {
    WgmmaFence();
    IssueValues<kOutput>(previous_v);
    WaitForValues<kOutput>();
  }

  __device__ __forceinline__ void LetGo(const PageRing<Shape>& ring, int stage) const {
    if (lane == 0) BarrierArrive(ring.Empty(stage));
  }

  __device__ __forceinline__ void StreamPages(const AttentionLaunch& call,
                                              const PageRing<Shape>& ring, const QueryTile& part,
                                              RingPosition& at);
  // The tile's pages behind the part's.
  __device__ __forceinline__ void SkipPages(const PageRing<Shape>& ring, int count,
                                            RingPosition& at) const {
    for (; count > 0; --count) {
      BarrierWait(ring.KFull(at.stage), at.parity);
      BarrierWait(ring.VFull(at.stage), at.parity);
      LetGo(ring, at.stage);
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

template <typename Shape>
__device__ __forceinline__ void PrefillWarpgroup<Shape>::StreamPages(const AttentionLaunch& call,
                                                                     const PageRing<Shape>& ring,
                                                                     const QueryTile& part,
                                                                     RingPosition& at) {
  constexpr int kLast = kOutputs - 1;
  const int num_pages = NumPages(part);
  if (num_pages == 0) return;
  const int unmasked_pages = UnmaskedSlots(call, part) / kImagePageSize;
  BarrierWait(ring.KFull(at.stage), at.parity);
  FirstStep<0>(ring.K(at.stage), unmasked_pages == 0, call.scale_log2);
  for (int page = 0;; ++page) {
    const int stage = at.stage;
    BarrierWait(ring.VFull(stage), at.parity);
    if constexpr (kOutputs == 2) {
      Step<1, 0>(ring.K(stage), ring.V(stage), page * kImagePageSize, page >= unmasked_pages,
                 call.scale_log2);
    }
    at.Advance(ring.num_stages);
    if (page + 1 == num_pages) {
      LastStep<kLast>(ring.V(stage));
      return LetGo(ring, stage);
    }
    BarrierWait(ring.KFull(at.stage), at.parity);
    Step<0, kLast>(ring.K(at.stage), ring.V(stage), (page + 1) * kImagePageSize,
                   page + 1 >= unmasked_pages, call.scale_log2);
    LetGo(ring, stage);
  }
}

// Stage 4: sub-norm, scale. Of both maps, normalised and subtracted; first what one thread holds of
// both maps; what the other warpgroup is to subtract becomes lambda times itself.
template <typename Shape>
__device__ __forceinline__ void PrefillWarpgroup<Shape>::SubtractMaps(const AttentionLaunch& call,
                                                                      const QueryTile& part) {
  const AttentionFinish& finish = call.finish;
  const bool paired = Paired(call);
  float inverse[kOutputs][2];
#pragma unroll
  for (int i = 0; i < 2 * kOutputs; ++i) {
    float total = sum[i / 2][i % 2];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    inverse[i / 2][i % 2] = InverseSum(total);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 1 && paired) break;
    const PrefillRow row = Row(call, part, half, 0);
    float lambda = finish.lambda;
    if (finish.lambda_rows != nullptr)
      lambda = row.exists ? finish.lambda_rows[row.row_head] : 0.0f;
    const float own = Shape::kMapPerWarpgroup && warpgroup == 1 ? lambda * inverse[0][half]
                                                                : inverse[0][half];
    const float other = lambda * inverse[kOutputs - 1][kOutputs == 2 ? half : 1];
#pragma unroll
    for (int i = 0; i < Shape::kVDim / 2; ++i) {
      if (i % 4 / 2 != half) continue;
      o[0][i] = MulRounded(o[0][i], own);  // equal maps and lambda 1 give 0
      if (kOutputs == 2) {
        o[0][i] -= MulRounded(o[kOutputs - 1][i], other);
      } else if (half == 0 && paired) {
        o[0][i] -= MulRounded(o[0][i + 2], other);
      }
    }
  }
}

// Map 2's half of each row's columns at a time. A thread reads what the same thread of the other
// warpgroup wrote.
template <typename Shape>
__device__ __forceinline__ void PrefillWarpgroup<Shape>::Send(const PageRing<Shape>& ring) const {
  auto* mine = reinterpret_cast<float4*>(DynamicShared() + (ring.Exchange() - ring.base)) +
               warp * 32 + lane;
#pragma unroll
  for (int round = 0; round < 2; ++round) {
#pragma unroll
    for (int i = 0; i < Shape::kVDim / 16; ++i) {
      const float* from = o[0] + round * Shape::kVDim / 4 + 4 * i;
      mine[i * kWarpgroupThreads] = float4{from[0], from[1], from[2], from[3]};
    }
    NamedBarrier(kExchangeWritten, 2 * kWarpgroupThreads);
    NamedBarrier(kExchangeRead, 2 * kWarpgroupThreads);
  }
}
template <typename Shape>
__device__ __forceinline__ void PrefillWarpgroup<Shape>::SubtractReceived(
    const PageRing<Shape>& ring) {
  const auto* other = reinterpret_cast<const float4*>(DynamicShared() +
                                                      (ring.Exchange() - ring.base)) +
                      warp * 32 + lane;
#pragma unroll
  for (int round = 0; round < 2; ++round) {
    NamedBarrier(kExchangeWritten, 2 * kWarpgroupThreads);
#pragma unroll
    for (int i = 0; i < Shape::kVDim / 16; ++i) {
      float* to = o[0] + round * Shape::kVDim / 4 + 4 * i;
      const float4 values = other[i * kWarpgroupThreads];
      to[0] -= values.x;
      to[1] -= values.y;
      to[2] -= values.z;
      to[3] -= values.w;
    }
    NamedBarrier(kExchangeRead, 2 * kWarpgroupThreads);
  }
}

// Sub-norm, scale, round. Four neighbouring lanes hold a row's columns.
template <typename Shape>
__device__ __forceinline__ void PrefillWarpgroup<Shape>::WriteRow(const AttentionFinish& finish,
                                                                  const PrefillRow& row,
                                                                  int half) const {
  float factor = finish.out_scale;
  if (finish.has_sub_norm) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < Shape::kVDim / 8; ++i) {
#pragma unroll
      for (int j = 4 * i + 2 * half; j < 4 * i + 2 * half + 2; ++j) squares += o[0][j] * o[0][j];
    }
    squares += __shfl_xor_sync(kAllLanes, squares, 1);
    squares += __shfl_xor_sync(kAllLanes, squares, 2);
    factor *= rsqrtf(squares / Shape::kVDim + finish.sub_norm_eps);
  }
  if (!row.exists) return;
#pragma unroll
  for (int i = 0; i < Shape::kVDim / 8; ++i) {
    const int column = 8 * i + lane % 4 * 2;
    float2 weight = make_float2(factor, factor);
    if (finish.sub_norm_weight != nullptr) {
      weight.x *= finish.sub_norm_weight[column];
      weight.y *= finish.sub_norm_weight[column + 1];
    }
    *reinterpret_cast<uint32_t*>(finish.out + row.row_head * Shape::kVDim + column) = PackBFloat16(
        o[0][4 * i + 2 * half] * weight.x, o[0][4 * i + 2 * half + 1] * weight.y);
  }
}

template <typename Shape>
__device__ __forceinline__ void PrefillWarpgroup<Shape>::Finish(const AttentionLaunch& call,
                                                                const PageRing<Shape>& ring,
                                                                const QueryTile& part) {
  SubtractMaps(call, part);
  if constexpr (Shape::kMapPerWarpgroup) {
    if (warpgroup == 1) return Send(ring);
    SubtractReceived(ring);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 0 || !Paired(call)) WriteRow(call.finish, Row(call, part, half, 0), half);
  }
}

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__global__ void __launch_bounds__(kHopperThreads, 1)
    DiffPrefillSm90aKernel(const __grid_constant__ AttentionLaunch call) {
  using Shape = HopperShape<Codec, kHeadDim, kVDim, kKMaps>;
  const PageRing<Shape> ring = {SharedAddress(DynamicShared()), call.num_stages};
  if (threadIdx.x == 0) ring.Init();
  __syncthreads();
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);  // the compiler
                                                                                   // then knows
                                                                                   // that it is one
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (warp < 4) {
    DecreaseRegisters<kFetchRegisters>();
    if (warp == 0) FetchPages<Shape>(call, ring, lane);
    return;
  }
  IncreaseRegisters<kComputeRegisters>();
  PrefillWarpgroup<Shape> state;
  state.warpgroup = warp / 4 - 1;
  state.warp = warp % 4;
  state.lane = lane;
  RingPosition at;
  for (int turn = 0;; ++turn) {
    const PrefillWork work = PrefillWorkOf(call, turn);
    if (work.item < 0) return;
    {
      const QueryTile part = state.Part(call, PrefillTileOf(call, work));
      state.Begin(call, part);
      state.StreamPages(call, ring, part, at);
    }
    // Read again, which costs less than registers that hold it while the pages stream by.
    const QueryTile tile = PrefillTileOf(call, work);
    const QueryTile part = state.Part(call, tile);
    state.SkipPages(ring, NumPages(tile) - NumPages(part), at);
    state.Finish(call, ring, part);
  }
}

}  // namespace diffserve::cuda
