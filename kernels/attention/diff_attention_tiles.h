// SPDX-License-Identifier: Apache-2.0
// The register tiles of a level's attention kernel: a few queries against a few vectors of slots or
// columns, so that each K or V element is loaded once for several of them. Tiling changes no bit:
// each score and each output element keeps its chain. Only *.isa.cc files include this.
#pragma once

#include "kernels/attention/diff_attention_kernel.h"
#include "kernels/attention/kv_loads.h"
#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

constexpr int kRange = kAttentionRangeSlots;
constexpr int kStep = 64;                   // slots per step of scores
constexpr int kRun = 16;                    // adjacent slots; a page has whole runs
constexpr int kRunVectors = kRun / kLanes;  // 2 or 1
constexpr int kTile = 6;                    // queries per register tile
constexpr int kIntoL2 = 2;                  // prefetch locality: L1 is full of the current step

// q or a weight as the codec's products take it.
template <typename Codec>
using OperandOf = typename KvLoads<Codec>::Operand;
template <typename Codec>
constexpr bool kHasScales = Codec::Description().scale_bits > 0;  // integer codes
template <typename Codec>
constexpr bool kVIs4Bits = Codec::Description().v_bits == 4;
// Dims per operand of q.
template <typename Codec>
constexpr int kQNumbers = kHasScales<Codec> ? 4 : KvLoads<Codec>::kNumbers;
// Operands of a range's weights. int8 codes take two lists, one per half of V.
template <typename Codec>
constexpr int kRangeOperands = kHasScales<Codec> ? kRange : kRange / KvLoads<Codec>::kNumbers;

// Runs that R queries take at once: enough chains to hide the latency, few enough for the
// registers.
constexpr int RunsAtOnce(int r) { return kLanes == 16 || r == 1 ? 4 : r <= 3 ? 2 : 1; }
// One query reads as much of a row of V as the registers allow: memory is read in order.
constexpr int ColumnVectorsAtOnce(int r) { return r == 1 ? 8 : kLanes == 16 || r == 2 ? 4 : 2; }

// Scores of some queries against runs of kRun slots; lanes are slots. The same places of `next` are
// prefetched, unless it is nullptr.
template <typename Codec>
struct QueryRunTile {
  const OperandOf<Codec>* q;               // [head_dim / numbers of an operand][queries]
  const std::byte* const* k = nullptr;     // dim 0 of each run's first slot
  const std::byte* const* next = nullptr;  // or nullptr
  int head_dim;
  int page_size;
  float scale;
  float* scores = nullptr;  // a row of kRange per query
  // With integer codes:
  const float* q_scales = nullptr;         // per query
  const int32_t* q_sums = nullptr;         // sums of each query's codes
  const float* const* k_scales = nullptr;  // scales of each run's slots
};

// R queries, NS runs: one chain over ascending head_dim per slot.
template <typename Codec, int R, int NS>
void Scores(const QueryRunTile<Codec>& tile) {
  using Loads = KvLoads<Codec>;
  const auto& [q_begin, k, next, head_dim, page_size, scale, scores, _1, _2, _3] = tile;
  const OperandOf<Codec>* q = q_begin;
  constexpr int kVectors = NS * kRunVectors;
  constexpr int kPack = Codec::Description().k_pack;
  constexpr int64_t kVectorBytes = KBytes<Codec>(kPack * kLanes);
  F32 acc[R][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = Zero();
  }
  int64_t offset = 0;
  for (int d = 0; d < head_dim; d += kPack, offset += KBytes<Codec>(kPack * page_size)) {
#pragma GCC unroll 4
    for (int n = 0; n < NS; ++n) {
      if (next != nullptr) __builtin_prefetch(next[n] + offset, 0, kIntoL2);
    }
#pragma GCC unroll 8
    for (int dim = 0; dim < kPack; dim += Loads::kNumbers, q += R) {
      typename Loads::Vector slots[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        slots[v] = Loads::SlotsOfK(k[v / kRunVectors] + offset + v % kRunVectors * kVectorBytes,
                                   dim);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const auto value = Loads::Broadcast(q[r]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = Loads::Add(acc[r][v], value, slots[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      Store(scores + r * kRange + v * kLanes, Mul(acc[r][v], Set1(scale)));
  }
}

// What R outputs take of the values of a range's slots [first, end), which are whole packs. Each
// element is a chain over ascending slots, which continues from `sums` unless it begins at the
// range's slot 0. Columns are [first_column, end_column).
template <typename Codec>
struct ValueTile {
  const OperandOf<Codec>* weights = nullptr;  // of the range, a row of kRangeOperands per output
  const std::byte* const* v;                  // column 0 of the range's runs
  const std::byte* const* next;               // runs whose same places are prefetched, or nullptr
  int first = 0;
  int end = 0;
  int first_column;
  int end_column;
  int v_dim;
  float* sums = nullptr;  // of the range, a row of out_stride per output
  int64_t out_stride;
};

// R outputs and C vectors of columns from `column` on. With one vector, only its first `n` columns.
template <typename Codec, int R, int C>
void AddColumns(const ValueTile<Codec>& tile, int column, int n) {
  using Loads = KvLoads<Codec>;
  constexpr int kPack = Codec::Description().v_pack;
  constexpr int64_t kVectorBytes = VBytes<Codec>(kPack * kLanes);
  const int64_t pack_bytes = VBytes<Codec>(kPack * tile.v_dim);
  const int64_t column_bytes = VBytes<Codec>(kPack * column);
  float* sums = tile.sums + column;
  F32 acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
      acc[r][c] = tile.first == 0 ? Zero() : Load(sums + r * tile.out_stride + c * kLanes);
  }
  const OperandOf<Codec>* weights = tile.weights + tile.first / Loads::kNumbers;
  for (int slot = tile.first; slot < tile.end;) {
    const int run = slot / kRun;
    const int end = MinInt(tile.end, (run + 1) * kRun);
    int64_t offset = column_bytes + slot % kRun / kPack * pack_bytes;
    const std::byte* v = tile.v[run];
    const std::byte* next = tile.next == nullptr ? nullptr : tile.next[run];
    for (; slot < end; slot += kPack, offset += pack_bytes) {
      if (next != nullptr) {
#pragma GCC unroll 8
        for (int64_t byte = 0; byte < C * kVectorBytes; byte += 64)
          __builtin_prefetch(next + offset + byte, 0, kIntoL2);
      }
#pragma GCC unroll 2
      for (int in_pack = 0; in_pack < kPack; in_pack += Loads::kNumbers, ++weights) {
        typename Loads::Vector row[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          const std::byte* from = v + offset + c * kVectorBytes;
          row[c] = C == 1 && n < kLanes ? Loads::LastColumnsOfV(from, in_pack, n)
                                        : Loads::ColumnsOfV(from, in_pack);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const auto weight = Loads::Broadcast(weights[r * kRangeOperands<Codec>]);
#pragma GCC unroll 8
          for (int c = 0; c < C; ++c) acc[r][c] = Loads::Add(acc[r][c], weight, row[c]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) Store(sums + r * tile.out_stride + c * kLanes, acc[r][c]);
  }
}

// Columns from `column` on, C vectors at a time. Returns the first column that is left.
template <typename Codec, int R, int C>
int AddWholeColumns(const ValueTile<Codec>& tile, int column) {
  for (; column + C * kLanes <= tile.end_column; column += C * kLanes)
    AddColumns<Codec, R, C>(tile, column, kLanes);
  return column;
}

template <typename Codec, int R>
void AddValues(const ValueTile<Codec>& tile) {
  constexpr int kVectors = ColumnVectorsAtOnce(R);
  int column = tile.first_column;
  if constexpr (kVectors == 8) {
    column = AddWholeColumns<Codec, R, 8>(tile, column);
    column = AddWholeColumns<Codec, R, 6>(tile, column);
  }
  if constexpr (kVectors >= 4) column = AddWholeColumns<Codec, R, 4>(tile, column);
  column = AddWholeColumns<Codec, R, 2>(tile, column);
  for (; column < tile.end_column; column += kLanes)
    AddColumns<Codec, R, 1>(tile, column, MinInt(kLanes, tile.end_column - column));
}

// Takes only `slot` of its pack: the first or the last slot that `outputs` outputs see.
template <typename Codec>
void AddLoneSlot(const ValueTile<Codec>& tile, int slot, int outputs) {
  using Loads = KvLoads<Codec>;
  constexpr int kPack = Codec::Description().v_pack;
  const int in_pack = slot % kPack;
  const std::byte* v = tile.v[slot / kRun] +
                       VBytes<Codec>(static_cast<int64_t>(slot % kRun - in_pack) * tile.v_dim);
  for (int column = tile.first_column; column < tile.end_column; column += kLanes) {
    const F32 row = Loads::LoneSlotOfV(v + VBytes<Codec>(kPack * column), in_pack,
                                       MinInt(kLanes, tile.end_column - column));
    for (int i = 0; i < outputs; ++i) {
      const float weight = Loads::LoneWeight(
          tile.weights[i * kRangeOperands<Codec> + slot / Loads::kNumbers], in_pack);
      float* sum = tile.sums + i * tile.out_stride + column;
      Store(sum, Fma(Set1(weight), row, slot == 0 ? Zero() : Load(sum)));
    }
  }
}

}  // namespace diffserve::DS_ISA
