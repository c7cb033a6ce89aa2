// Every output element is one chain of fused multiply-adds over in_features in ascending order,
// whatever the tile: cutting the chain into blocks stores and reloads the partial sum, which
// changes no bit.
#include "kernels/base/simd.h"
#include "kernels/ops/linear_kernel.h"

namespace diffserve::DS_ISA {

namespace {

constexpr int kPanel = kPanelColumns;
constexpr int kTileRows = kLanes == 8 ? 6 : 12;  // x 2 vectors: 12 of 16, or 24 of 32 registers
                                                 // accumulate
constexpr int64_t kL2Bytes = 384 << 10;          // to count on: 512 KiB on Zen 3, more elsewhere
constexpr int kBlockRows = 96;                   // of x, a multiple of kTileRows
constexpr int kBlockColumns = 512;               // of y: the partial sums of a block are 192 KiB
constexpr int kBlockDepth = 256;            // of in_features: a float32 panel block is 16 or 32 KiB
constexpr int kXStride = kBlockDepth + 16;  // keeps rows of the packed x block in different cache
                                            // sets

enum class Weights { kFloat32, kBFloat16 };

// Acc[r][np] (two vectors) += x[r][k] * panel np[k] for k in [0, depth), R rows by NP panels.
template <Weights kWeights, int R, int NP>
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

  // Asks for the panels' bytes kAheadBytes further on: the hardware alone keeps up with one row
  // only.
  [[gnu::always_inline]] static void PrefetchAhead(const char* panel, int64_t panel_stride) {
    constexpr int kAheadBytes = 1024;
#pragma GCC unroll 4
    for (int np = 0; np < NP; ++np) {
#pragma GCC unroll 2
      for (int line = 0; line < kPanel * 4; line += 64)
        __builtin_prefetch(panel + np * panel_stride + kAheadBytes + line);
    }
  }

  // `panel` is the first panel at its first k; panels are panel_stride bytes apart.
  template <bool kPrefetch>
  [[gnu::always_inline]] void Accumulate(const char* panel, int64_t panel_stride, const float* x,
                                         int64_t x_stride, int depth) {
    F32 w[NP][2];
    if constexpr (kWeights == Weights::kFloat32) {
      for (int k = 0; k < depth; ++k, ++x, panel += kPanel * 4) {
        if constexpr (kPrefetch) PrefetchAhead(panel, panel_stride);
#pragma GCC unroll 4
        for (int np = 0; np < NP; ++np) {
          const float* p = reinterpret_cast<const float*>(panel + np * panel_stride);
          w[np][0] = Load(p);
          w[np][1] = Load(p + kLanes);
        }
        Step(w, x, x_stride);
      }
    } else {
      int k = 0;
      for (; k + 2 <= depth; k += 2, x += 2, panel += kPanel * 4) {
        if constexpr (kPrefetch) PrefetchAhead(panel, panel_stride);
#pragma GCC unroll 4
        for (int np = 0; np < NP; ++np) {
          const uint16_t* p = reinterpret_cast<const uint16_t*>(panel + np * panel_stride);
          w[np][0] = EvenBf16(p);
          w[np][1] = EvenBf16(p + 2 * kLanes);
        }
        Step(w, x, x_stride);
#pragma GCC unroll 4
        for (int np = 0; np < NP; ++np) {
          const uint16_t* p = reinterpret_cast<const uint16_t*>(panel + np * panel_stride);
          w[np][0] = OddBf16(p);
          w[np][1] = OddBf16(p + 2 * kLanes);
        }
        Step(w, x + 1, x_stride);
      }
      if (k < depth) {
#pragma GCC unroll 4
        for (int np = 0; np < NP; ++np) {
          const uint16_t* p = reinterpret_cast<const uint16_t*>(panel + np * panel_stride);
          w[np][0] = EvenBf16(p);
          w[np][1] = EvenBf16(p + 2 * kLanes);
        }
        Step(w, x, x_stride);
      }
    }
  }
};

const char* PanelAt(const LinearSlice& s, int panel) {
  const int64_t depth = s.is_bf16 ? (s.in_features + 1) / 2 * 2 : s.in_features;
  return static_cast<const char*>(s.panels) + panel * depth * kPanel * (s.is_bf16 ? 2 : 4);
}

// y of `rows` rows from `row` and of one panel's columns, from the finished sums.
void Finish(const LinearSlice& s, int panel, int row, int rows, const float* sums,
            int64_t sums_stride) {
  const int first = panel * kPanel;
  const int count = s.out_features - first < kPanel ? s.out_features - first : kPanel;
  for (int r = 0; r < rows; ++r) {
    float* y = s.y + (row + r) * s.y_stride + first;
    for (int at = 0; at < count; at += kLanes) {
      const int n = count - at < kLanes ? count - at : kLanes;
      F32 sum = Load(sums + r * sums_stride + at);
      if (s.bias != nullptr) sum = Add(sum, LoadFirst(s.bias + first + at, n));
      if (s.accumulate) sum = Add(LoadFirst(y + at, n), sum);
      StoreFirst(y + at, n, sum);
    }
  }
}

// A register tile over the whole depth: R rows from `row`, NP panels.
template <Weights kWeights, int R, int NP>
void WholeDepth(const LinearSlice& s, int panel, int row) {
  alignas(64) float sums[R * NP * kPanel];
  const char* first = PanelAt(s, panel);
  Tile<kWeights, R, NP> tile;
  tile.Clear();
  tile.template Accumulate<(R >= 2)>(first, PanelAt(s, panel + 1) - first,
                                     s.x + static_cast<int64_t>(row) * s.in_features, s.in_features,
                                     s.in_features);
  tile.StoreTo(sums, NP * kPanel);
  for (int np = 0; np < NP; ++np) Finish(s, panel + np, row, R, sums + np * kPanel, NP * kPanel);
}

// Enough panels side by side for eight or more independent chains.
constexpr int PanelsAtOnce(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

using WholeDepthFunction = void (*)(const LinearSlice&, int panel, int row);
struct WholeDepthFunctions {
  WholeDepthFunction single;   // one panel
  WholeDepthFunction several;  // PanelsAtOnce panels
};

// The same for one block of depth: the partial sums are kept in memory between blocks.
template <int R>
void BlockTile(const float* panel, const float* x, int depth, float* sums, bool continued) {
  Tile<Weights::kFloat32, R, 1> tile;
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
  template <Weights kWeights>
  static constexpr WholeDepthFunctions kWhole[] = {
      {nullptr, nullptr},
      {WholeDepth<kWeights, R, 1>, WholeDepth<kWeights, R, PanelsAtOnce(R)>}...};
};
using TileTables = Tables<TileRowCounts>;

// Few rows: tiles over the whole depth. Each weight is read from memory once; later tiles find the
// panel in L2.
void FewRows(const LinearSlice& s) {
  const auto& functions = s.is_bf16 ? TileTables::kWhole<Weights::kBFloat16>
                                    : TileTables::kWhole<Weights::kFloat32>;
  const int num_tiles = (s.rows + kTileRows - 1) / kTileRows;
  const int at_once = PanelsAtOnce(s.rows / num_tiles);
  int panel = s.panel_begin;
  while (panel < s.panel_end) {
    const bool several = num_tiles == 1 && panel + at_once <= s.panel_end;
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int begin = s.rows * tile / num_tiles;
      const WholeDepthFunctions& sized = functions[s.rows * (tile + 1) / num_tiles - begin];
      (several ? sized.several : sized.single)(s, panel, begin);
    }
    panel += several ? at_once : 1;
  }
}

// The block's rows of x, `depth` elements from `k`, at kXStride.
void PackX(const LinearSlice& s, int row, int rows, int k, int depth, float* packed) {
  for (int r = 0; r < rows; ++r) {
    const float* from = s.x + static_cast<int64_t>(row + r) * s.in_features + k;
    float* to = packed + r * kXStride;
    int i = 0;
    for (; i + kLanes <= depth; i += kLanes) Store(to + i, Load(from + i));
    for (; i < depth; ++i) to[i] = from[i];
  }
}

void WidenPanelBlock(const char* from, int depth, float* to) {
  const uint16_t* p = reinterpret_cast<const uint16_t*>(from);
  for (int k = 0; k < depth; k += 2, p += 2 * kPanel, to += 2 * kPanel) {
    for (int half = 0; half < 2; ++half) {
      Store(to + half * kLanes, EvenBf16(p + half * 2 * kLanes));
      Store(to + kPanel + half * kLanes, OddBf16(p + half * 2 * kLanes));
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
void AddDepthBlock(const LinearSlice& s, int panel_begin, int panel_end, int rows, int k, int depth,
                   BlockBuffers& buffers) {
  const int num_tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t panel_bytes = PanelAt(s, panel_begin + 1) - PanelAt(s, panel_begin);
  const int block_bytes = depth * kPanel * (s.is_bf16 ? 2 : 4);
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    const char* block = PanelAt(s, panel) + static_cast<int64_t>(k) * kPanel * (s.is_bf16 ? 2 : 4);
    if (s.is_bf16) WidenPanelBlock(block, depth, buffers.panel);
    const float* weights = s.is_bf16 ? buffers.panel : reinterpret_cast<const float*>(block);
    float* sums = buffers.sums + (panel - panel_begin) * kPanel;
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int begin = rows * tile / num_tiles;
      const int end = rows * (tile + 1) / num_tiles;
      // The next panel's block, a share with each tile, into L2.
      if (panel + 1 < panel_end) {
        const char* next = block + panel_bytes;
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
        AddDepthBlock(s, panel, panel_end, rows, k, depth, buffers);
      }
      for (int p = panel; p < panel_end; ++p)
        Finish(s, p, row, rows, buffers.sums + (p - panel) * kPanel, kBlockColumns);
    }
  }
}

}  // namespace

void Linear(const LinearSlice& slice);
void Linear(const LinearSlice& slice) {
  if (slice.rows <= 0 || slice.panel_begin >= slice.panel_end) return;
  // What must stay in L2 while a panel meets all rows: the panel and x.
  const int64_t panel_bytes = PanelAt(slice, 1) - PanelAt(slice, 0);
  const int64_t x_bytes = static_cast<int64_t>(slice.rows) * slice.in_features * 4;
  if (slice.rows <= 2 * kTileRows || panel_bytes + x_bytes <= kL2Bytes) {
    FewRows(slice);
  } else {
    ManyRows(slice);
  }
}

}  // namespace diffserve::DS_ISA
