// SPDX-License-Identifier: Apache-2.0
// Register tiles for pages that hold codes with scales (kv_codec.h). Sums are integers, which are
// exact in any order. Only *.isa.cc files include this.
#pragma once

#include "kernels/attention/diff_attention_tiles.h"
#include "kernels/attention/quantise_lanes.h"

namespace diffserve::DS_ISA {

// acc + codes of K (four dims per slot) times codes of q.
[[gnu::always_inline]] inline I32 AddDims(I32 acc, Quads k, Quads q) {
  if constexpr (kDotsUnsigned) return DotQuads(acc, k, q);
  return DotSigned(acc, FlipTopBits(k), q);
}

// Multiplies codes of K by s8 codes of q, a pack of dims at a time.
template <typename Codec, int R, int NS>
void CodeScores(const QueryRunTile<Codec>& tile) {
  constexpr int kVectors = NS * kRunVectors;
  constexpr int kPack = Codec::Description().k_pack;
  constexpr bool kIs4Bits = Codec::Description().k_bits == 4;
  constexpr int kPackBytes = 4;  // per slot
  static_assert(KBytes<Codec>(kPack) == kPackBytes);
  I32 acc[R][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    // An unsigned code times q is (code - kZero) times q and kZero times q.
    const I32 correction = Set1Int(!kIs4Bits && kDotsUnsigned ? -Int8Codec::kZero * tile.q_sums[r]
                                                              : 0);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = correction;
  }
  const int32_t* q = tile.q;
  int64_t offset = 0;
  for (int d = 0; d < tile.head_dim;
       d += kPack, offset += kPackBytes * tile.page_size, q += kPack / 4 * R) {
    Quads k[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < NS; ++n) {
      if (tile.next != nullptr) __builtin_prefetch(tile.next[n] + offset, 0, kIntoL2);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      k[v] = LoadQuads(tile.k[v / kRunVectors] + offset + v % kRunVectors * kPackBytes * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Quads value = Set1Quad(q[r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kIs4Bits) {
          acc[r][v] = DotTwoQuads(acc[r][v], LowerHalves(k[v]), value, UpperHalves(k[v]),
                                  Set1Quad(q[R + r]));
        } else {
          acc[r][v] = AddDims(acc[r][v], k[v], value);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const float unit = kIs4Bits ? 1.0f / FourBits::kZeroUnits : 1.0f;
    const F32 scale = Set1(tile.q_scales[r] * tile.scale * unit);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const float* k_scales = tile.k_scales[v / kRunVectors] + v % kRunVectors * kLanes;
      F32 k_scale = Load(k_scales);
      if constexpr (kIs4Bits) {
        const FourBitScales four(k_scales);
        acc[r][v] = Subtract(Multiply(acc[r][v], Set1Int(FourBits::kZeroUnits)),
                             Multiply(four.zeros, Set1Int(tile.q_sums[r])));
        k_scale = four.steps;
      }
      Store(tile.scores + r * kRange + v * kLanes, Mul(Mul(ToFloat(acc[r][v]), scale), k_scale));
    }
  }
}

// Sums of R outputs over C vectors of columns. The sums of one range fit 32 bits and are stored as
// integers in the memory of the floats.
template <typename Codec, int R, int C>
struct CodeSums {
  static constexpr int kPack = Codec::Description().v_pack;
  static constexpr int kPackBytes = VBytes<Codec>(kPack);  // per column
  static constexpr int kVectorBytes = kPackBytes * kLanes;
  I32 acc[R][C];

  [[gnu::always_inline]] CodeSums(const float* sums, int64_t stride, bool is_first) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
        acc[r][c] = is_first ? Set1Int(0) : LoadInts(sums + r * stride + c * kLanes);
    }
  }
  // Adds two slots: s16 weights times codes of V.
  [[gnu::always_inline]] void Add(const I16Pairs (&row)[C], const int32_t* weights) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const I16Pairs weight = Set1Pair16(weights[r * kRangeOperands<Codec>]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = DotPairs(acc[r][c], weight, row[c]);
    }
  }
  template <int kShift>
  [[gnu::always_inline]] void AddFourBits(const Quads (&codes)[C], const int32_t* weights) {
    I16Pairs row[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) row[c] = FourBitPairs<kShift>(codes[c]);
    Add(row, weights);
  }
  [[gnu::always_inline]] void AddPack(const std::byte* from, const int32_t* weights) {
    if constexpr (kVIs4Bits<Codec>) {
      Quads codes[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) codes[c] = LoadQuads(from + c * kVectorBytes);
      AddFourBits<0>(codes, weights);
      AddFourBits<4>(codes, weights + 1);
      AddFourBits<8>(codes, weights + 2);
      AddFourBits<12>(codes, weights + 3);
    } else {
      I16Pairs row[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) row[c] = WidenPairs(from + c * kVectorBytes);
      Add(row, weights);
    }
  }
  // With one vector, stores only its first `n` columns: the rest belongs to another part.
  [[gnu::always_inline]] void Store(float* sums, int64_t stride, int n) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        float* to = sums + r * stride + c * kLanes;
        if (C == 1 && n < kLanes) {
          alignas(64) float all[kLanes];
          StoreInts(all, acc[r][c]);
          __builtin_memcpy(to, all, static_cast<size_t>(n) * sizeof(float));
        } else {
          StoreInts(to, acc[r][c]);
        }
      }
    }
  }
};

// R outputs and C vectors of columns from `column` on. With one vector, only its first `n` columns.
template <typename Codec, int R, int C>
void AddCodeColumns(const ValueTile<Codec>& tile, int column, int n) {
  using Sums = CodeSums<Codec, R, C>;
  constexpr int kPack = Sums::kPack;
  Sums sums(tile.sums + column, tile.out_stride, tile.first == 0);
  const int64_t pack_bytes = int64_t{Sums::kPackBytes} * tile.v_dim;
  const int32_t* weights = tile.weights + tile.first / 2;
  for (int slot = tile.first; slot < tile.end;) {
    const int run = slot / kRun;
    const int end = MinInt(tile.end, (run + 1) * kRun);
    int64_t offset = int64_t{Sums::kPackBytes} * column + slot % kRun / kPack * pack_bytes;
    for (; slot < end; slot += kPack, offset += pack_bytes, weights += kPack / 2) {
      if (tile.next != nullptr) {
#pragma GCC unroll 8
        for (int byte = 0; byte < C * Sums::kVectorBytes; byte += 64)
          __builtin_prefetch(tile.next[run] + offset + byte, 0, kIntoL2);
      }
      const std::byte* from = tile.v[run] + offset;
      if (C == 1 && n < kLanes) {
        alignas(64) std::byte padded[Sums::kVectorBytes] = {};
        for (int i = 0; i < Sums::kPackBytes * n; ++i) padded[i] = from[i];
        sums.AddPack(padded, weights);
      } else {
        sums.AddPack(from, weights);
      }
    }
  }
  sums.Store(tile.sums + column, tile.out_stride, n);
}

template <typename Codec, int R>
void AddCodeValues(const ValueTile<Codec>& tile) {
  constexpr int kVectors = ColumnVectorsAtOnce(R);
  int column = tile.first_column;
  if constexpr (R == 1 && kLanes == 16) {  // six chains hide the latency that two do not
    if ((tile.end_column - column) % (6 * kLanes) == 0) {
      for (; column < tile.end_column; column += 6 * kLanes)
        AddCodeColumns<Codec, R, 6>(tile, column, kLanes);
    }
  }
  for (; column + kVectors * kLanes <= tile.end_column; column += kVectors * kLanes)
    AddCodeColumns<Codec, R, kVectors>(tile, column, kLanes);
  if constexpr (kVectors == 4) {
    for (; column + 2 * kLanes <= tile.end_column; column += 2 * kLanes)
      AddCodeColumns<Codec, R, 2>(tile, column, kLanes);
  }
  for (; column < tile.end_column; column += kLanes)
    AddCodeColumns<Codec, R, 1>(tile, column, MinInt(kLanes, tile.end_column - column));
}

}  // namespace diffserve::DS_ISA
