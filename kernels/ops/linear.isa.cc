// SPDX-License-Identifier: Apache-2.0
// Every output element is one chain of fused multiply-adds over in_features in ascending order,
// whatever the tile. Cutting the chain into blocks stores and reloads the partial sum, which
// changes no bit.
#include "kernels/ops/linear_panels.h"

namespace diffserve::DS_ISA {

namespace {

constexpr int kPanel = kPanelColumns;
// x 2 vectors: 12 of 16, or 24 of 32 registers accumulate.
constexpr int kTileRows = kLanes == 8 ? 6 : 12;
constexpr int64_t kL2Bytes = 384 << 10;  // a safe size: 512 KiB on Zen 3, more elsewhere
constexpr int kBlockRows = 96;           // of x, a multiple of kTileRows
constexpr int kBlockColumns = 512;       // of y: the partial sums of a block are 192 KiB
constexpr int kBlockDepth = 256;         // of in_features: a float32 panel block is 16 or 32 KiB
// Keeps rows of the packed x block in different cache sets.
constexpr int kXStride = kBlockDepth + 16;

// The kernel's side of a WeightFormat. Its loop takes kStep in_features at a time; their elements
// in one panel are kStepBytes. Load<kAt> gives the kAt-th of them, for half a panel of columns.
struct Float32Weights : Float32Panel {
  static constexpr int kStep = 1;
  template <int kAt>
  [[gnu::always_inline]] static F32 Load(const char* panel, int half) {
    return DS_ISA::Load(reinterpret_cast<const float*>(panel) + half * kLanes);
  }
};
struct BFloat16Weights : BFloat16Panel {
  static constexpr int kStep = 2;
  template <int kAt>
  [[gnu::always_inline]] static F32 Load(const char* panel, int half) {
    const uint16_t* pairs = reinterpret_cast<const uint16_t*>(panel) + half * 2 * kLanes;
    return kAt == 0 ? EvenBf16(pairs) : OddBf16(pairs);
  }
};
struct Float16Weights : Float16Panel {
  static constexpr int kStep = 2;
  template <int kAt>
  [[gnu::always_inline]] static F32 Load(const char* panel, int half) {
    return LoadF16(reinterpret_cast<const uint16_t*>(panel) + kAt * kPanel + half * kLanes);
  }
};

template <typename Weights>
constexpr int kDepthBytes = kPanel * static_cast<int>(sizeof(typename Weights::Element));

// Acc[r][np] (two vectors) += x[r][k] * panel np[k] for k in [0, depth), R rows by NP panels.
template <typename Weights, int R, int NP>
struct Tile {
  F32 acc[R][NP][2];

  [[gnu::always_inline]] void Clear() {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int np = 0; np < NP; ++np) acc[r][np][0] = acc[r][np][1] = Zero();
    }
  }
  [[gnu::always_inline]] void LoadFrom(const float* c, int64_t stride) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int np = 0; np < NP; ++np) {
        acc[r][np][0] = Load(c + r * stride + np * kPanel);
        acc[r][np][1] = Load(c + r * stride + np * kPanel + kLanes);
      }
    }
  }
  [[gnu::always_inline]] void StoreTo(float* c, int64_t stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int np = 0; np < NP; ++np) {
        Store(c + r * stride + np * kPanel, acc[r][np][0]);
        Store(c + r * stride + np * kPanel + kLanes, acc[r][np][1]);
      }
    }
  }
  [[gnu::always_inline]] void Step(const F32 (&w)[NP][2], const float* x, int64_t x_stride) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F32 value = Set1(x[r * x_stride]);
#pragma GCC unroll 4
      for (int np = 0; np < NP; ++np) {
        acc[r][np][0] = Fma(value, w[np][0], acc[r][np][0]);
        acc[r][np][1] = Fma(value, w[np][1], acc[r][np][1]);
      }
    }
  }

  // Prefetches the panels' bytes kAheadBytes further on: the hardware prefetcher keeps up with only
  // one row.
  [[gnu::always_inline]] static void PrefetchAhead(const char* panel, int64_t panel_stride) {
    constexpr int kStepBytes = Weights::kStep * kDepthBytes<Weights>;
#pragma GCC unroll 4
    for (int np = 0; np < NP; ++np) {
#pragma GCC unroll 2
      for (int line = 0; line < kStepBytes; line += 64)
        __builtin_prefetch(panel + np * panel_stride + kAheadBytes + line);
    }
  }

  // The kAt-th of a step's in_features.
  template <int kAt>
  [[gnu::always_inline]] void StepAt(const char* panel, int64_t panel_stride, const float* x,
                                     int64_t x_stride) {
    F32 w[NP][2];
#pragma GCC unroll 4
    for (int np = 0; np < NP; ++np) {
      w[np][0] = Weights::template Load<kAt>(panel + np * panel_stride, 0);
      w[np][1] = Weights::template Load<kAt>(panel + np * panel_stride, 1);
    }
    Step(w, x + kAt, x_stride);
  }

  // `panel` is the first panel at its first k; panels are panel_stride bytes apart.
  template <bool kPrefetch>
  [[gnu::always_inline]] void Accumulate(const char* panel, int64_t panel_stride, const float* x,
                                         int64_t x_stride, int depth) {
    constexpr int kStep = Weights::kStep;
    static_assert(kStep == 1 || kStep == 2);
    int k = 0;
    for (; k + kStep <= depth; k += kStep, x += kStep, panel += kStep * kDepthBytes<Weights>) {
      if constexpr (kPrefetch) PrefetchAhead(panel, panel_stride);
      StepAt<0>(panel, panel_stride, x, x_stride);
      if constexpr (kStep == 2) StepAt<1>(panel, panel_stride, x, x_stride);
    }
    if (k < depth) StepAt<0>(panel, panel_stride, x, x_stride);
  }
};

// A register tile over the whole depth: R rows from `row`, NP panels.
template <typename Weights, int R, int NP>
void WholeDepth(const LinearSlice& s, int panel, int row, const Fetch& /*fetch*/) {
  alignas(64) float sums[R * NP * kPanel];
  const char* first = PanelAt(s, panel);
  const float* x = static_cast<const float*>(s.x.values) + row * s.x.stride;
  Tile<Weights, R, NP> tile;
  tile.Clear();
  tile.template Accumulate<(R >= 2)>(first, s.panel_bytes, x, s.x.stride, s.in_features);
  tile.StoreTo(sums, NP * kPanel);
  for (int np = 0; np < NP; ++np) Finish(s, panel + np, row, R, sums + np * kPanel, NP * kPanel);
}

// Enough panels side by side for eight or more independent chains.
constexpr int PanelsAtOnce(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

// The same for one block of depth: partial sums are kept in memory between blocks.
template <int R>
void BlockTile(const float* panel, const float* x, int depth, float* sums, bool continued) {
  Tile<Float32Weights, R, 1> tile;
  if (continued) {
    tile.LoadFrom(sums, kBlockColumns);
  } else {
    tile.Clear();
  }
  tile.template Accumulate<false>(reinterpret_cast<const char*>(panel), 0, x, kXStride, depth);
  tile.StoreTo(sums, kBlockColumns);
}

using BlockTileFunction = void (*)(const float*, const float*, int, float*, bool);

// Tables by number of rows.
template <int... R>
struct RowCounts {};
#if defined(__AVX512F__) || defined(DS_PAIRED)
using TileRowCounts = RowCounts<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
#else
using TileRowCounts = RowCounts<1, 2, 3, 4, 5, 6>;
#endif
template <typename Rows>
struct Tables;
template <int... R>
struct Tables<RowCounts<R...>> {
  static_assert(sizeof...(R) == kTileRows);
  static constexpr BlockTileFunction kBlock[] = {nullptr, BlockTile<R>...};
  template <typename Weights>
  static constexpr WholeDepthFunctions kWhole[] = {
      {},
      {WholeDepth<Weights, R, 1>, WholeDepth<Weights, R, PanelsAtOnce(R)>,
       WholeDepth<Weights, R, 1>, PanelsAtOnce(R)}...};
};
using TileTables = Tables<TileRowCounts>;

// The block's rows of x, `depth` elements from `k`, at kXStride.
void PackX(const LinearSlice& s, int row, int rows, int k, int depth, float* packed) {
  for (int r = 0; r < rows; ++r) {
    const float* from = static_cast<const float*>(s.x.values) + (row + r) * s.x.stride + k;
    float* to = packed + r * kXStride;
    int i = 0;
    for (; i + kLanes <= depth; i += kLanes) Store(to + i, Load(from + i));
    for (; i < depth; ++i) to[i] = from[i];
  }
}

// A block of a panel as float32.
template <typename Weights>
void WidenPanelBlock(const char* from, int depth, float* to) {
  constexpr int kStep = Weights::kStep;
  for (int k = 0; k < depth;
       k += kStep, from += kStep * kDepthBytes<Weights>, to += kStep * kPanel) {
    for (int half = 0; half < 2; ++half) {
      Store(to + half * kLanes, Weights::template Load<0>(from, half));
      if (kStep == 2 && k + 1 < depth)
        Store(to + kPanel + half * kLanes, Weights::template Load<1>(from, half));
    }
  }
}

struct BlockBuffers {
  alignas(64) float x[kBlockRows * kXStride];
  alignas(64) float sums[kBlockRows * kBlockColumns];
  alignas(64) float panel[kBlockDepth * kPanel];
};

// Adds the depth range [k, k + depth) to the sums of `rows` rows and the panels [panel_begin,
// panel_end).
template <typename Weights>
void AddDepthBlock(const LinearSlice& s, int panel_begin, int panel_end, int rows, int k, int depth,
                   BlockBuffers& buffers) {
  const int num_tiles = (rows + kTileRows - 1) / kTileRows;
  constexpr bool kIsWide = sizeof(typename Weights::Element) == sizeof(float);
  const int block_bytes = depth * kDepthBytes<Weights>;
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    const char* block = PanelAt(s, panel) + static_cast<int64_t>(k) * kDepthBytes<Weights>;
    if constexpr (!kIsWide) WidenPanelBlock<Weights>(block, depth, buffers.panel);
    const float* weights = kIsWide ? reinterpret_cast<const float*>(block) : buffers.panel;
    float* sums = buffers.sums + (panel - panel_begin) * kPanel;
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int begin = rows * tile / num_tiles;
      const int end = rows * (tile + 1) / num_tiles;
      // Each tile prefetches a share of the next panel's block into L2.
      if (panel + 1 < panel_end) {
        const char* next = block + s.panel_bytes;
        for (int byte = block_bytes * tile / num_tiles / 64 * 64;
             byte < block_bytes * (tile + 1) / num_tiles; byte += 64) {
          __builtin_prefetch(next + byte, 0, 2);
        }
      }
      TileTables::kBlock[end - begin](weights, buffers.x + begin * kXStride, depth,
                                      sums + begin * kBlockColumns, k > 0);
    }
  }
}

template <typename Weights>
void ManyRows(const LinearSlice& s) {
  BlockBuffers buffers;
  constexpr int kBlockPanels = kBlockColumns / kPanel;
  for (int row = 0; row < s.rows; row += kBlockRows) {
    const int rows = s.rows - row < kBlockRows ? s.rows - row : kBlockRows;
    for (int panel = s.panel_begin; panel < s.panel_end; panel += kBlockPanels) {
      const int panel_end = panel + kBlockPanels < s.panel_end ? panel + kBlockPanels : s.panel_end;
      for (int k = 0; k < s.in_features; k += kBlockDepth) {
        const int depth = s.in_features - k < kBlockDepth ? s.in_features - k : kBlockDepth;
        PackX(s, row, rows, k, depth, buffers.x);
        AddDepthBlock<Weights>(s, panel, panel_end, rows, k, depth, buffers);
      }
      for (int p = panel; p < panel_end; ++p)
        Finish(s, p, row, rows, buffers.sums + (p - panel) * kPanel, kBlockColumns);
    }
  }
}

template <typename Weights>
void Run(const LinearSlice& slice) {
  // A panel and x must stay in L2 while the panel multiplies all rows.
  const int64_t x_bytes = static_cast<int64_t>(slice.rows) * slice.in_features * 4;
  if (slice.rows <= 2 * kTileRows || slice.panel_bytes + x_bytes <= kL2Bytes) {
    WalkPanels(slice, TileTables::kWhole<Weights>, kTileRows);
  } else {
    ManyRows<Weights>(slice);
  }
}

void Linear(const LinearSlice& slice) {
  if (slice.rows <= 0 || slice.panel_begin >= slice.panel_end) return;
  switch (slice.format) {
    case WeightFormat::kFloat32:
      return Run<Float32Weights>(slice);
    case WeightFormat::kBFloat16:
      return Run<BFloat16Weights>(slice);
    case WeightFormat::kFloat16:
      return Run<Float16Weights>(slice);
    case WeightFormat::kInt8:
    case WeightFormat::kInt4:
    case WeightFormat::kFp8E4M3:
      break;
  }
}

}  // namespace
}  // namespace diffserve::DS_ISA

namespace diffserve {

const LinearKernels& LinearKernels::DS_ISA() {
  static constexpr LinearKernels kKernels = {.panel_columns = DS_ISA::kPanelColumns,
                                             .linear = DS_ISA::Linear};
  return kKernels;
}

}  // namespace diffserve
