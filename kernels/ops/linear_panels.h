// SPDX-License-Identifier: Apache-2.0
// What the linear kernels of a level share: the walk over panels and tiles of rows, and the
// operations after a finished sum. Only *.isa.cc files include this.
#pragma once

#include "kernels/base/simd.h"
#include "kernels/ops/linear_kernel.h"

namespace diffserve::DS_ISA {

inline const char* PanelAt(const LinearSlice& s, int panel) {
  return static_cast<const char*>(s.panels) + panel * s.panel_bytes;
}

// Writes y for `rows` rows from `row` and one panel's columns, from the finished sums.
inline void Finish(const LinearSlice& s, int panel, int row, int rows, const float* sums,
                   int64_t sums_stride) {
  const int first = panel * kPanelColumns;
  const int count = s.out_features - first < kPanelColumns ? s.out_features - first : kPanelColumns;
  for (int r = 0; r < rows; ++r) {
    float* y = s.y + static_cast<int64_t>(row + r) * s.out_features + first;
    for (int at = 0; at < count; at += kLanes) {
      const int n = count - at < kLanes ? count - at : kLanes;
      F32 sum = Load(sums + r * sums_stride + at);
      if (s.scale != nullptr) sum = Mul(sum, LoadFirst(s.scale + first + at, n));
      if (s.bias != nullptr) sum = Add(sum, LoadFirst(s.bias + first + at, n));
      if (s.accumulate) sum = Add(LoadFirst(y + at, n), sum);
      StoreFirst(y + at, n, sum);
    }
  }
}

// How far ahead of its reads a tile prefetches: memory answers after some 150 ns, in which a core
// reads 6 KiB. A sixth of L1.
inline constexpr int kAheadBytes = 8192;

// What a tile prefetches. If one tile does a whole panel, it fetches what it reads next into L1,
// since the hardware prefetcher keeps up with only one row. If several tiles do a panel, each
// fetches its share of the next panel into L2, evenly over its steps.
struct Fetch {
  const char* from = nullptr;
  int64_t bytes = 0;
};

template <bool kOneTile>
class FetchSteps {
 public:
  FetchSteps(const Fetch& fetch, int64_t num_steps)
      : from_(fetch.from), step_((fetch.bytes << kFraction) / num_steps) {}

  // `at`: 128 bytes that this step reads.
  [[gnu::always_inline]] void Step(const char* at) {
    if constexpr (kOneTile) {
      __builtin_prefetch(at + kAheadBytes);
      __builtin_prefetch(at + kAheadBytes + 64);
    } else {
      __builtin_prefetch(from_ + (at_ >> kFraction), 0, 2);
      at_ += step_;
      __builtin_prefetch(from_ + (at_ >> kFraction), 0, 2);
    }
  }

 private:
  static constexpr int kFraction = 8;
  const char* from_;
  int64_t step_;
  int64_t at_ = 0;
};

// A register tile over the whole depth: some rows from `row` on, and some panels from `panel` on.
// If it is the only one and its rows are not all, it repeats itself over them.
using WholeDepthFunction = void (*)(const LinearSlice&, int panel, int row, const Fetch& fetch);
struct WholeDepthFunctions {
  WholeDepthFunction one_of_several;  // one of a panel's several tiles
  WholeDepthFunction only;            // the only tile of panels_at_once panels
  WholeDepthFunction only_of_one;     // the only tile of one remaining panel
  int panels_at_once;
};

// Walks tiles over the whole depth, by functions[number of rows], up to tile_rows. Each weight is
// read from memory once; later tiles find the panel in L2. Up to `repeats` tiles are one that
// repeats itself.
inline void WalkPanels(const LinearSlice& s, const WholeDepthFunctions* functions, int tile_rows,
                       int repeats = 1) {
  const int num_tiles = (s.rows + tile_rows - 1) / tile_rows;
  if (num_tiles <= repeats) {
    const WholeDepthFunctions& sized = functions[(s.rows + num_tiles - 1) / num_tiles];
    int panel = s.panel_begin;
    for (; panel + sized.panels_at_once <= s.panel_end; panel += sized.panels_at_once)
      sized.only(s, panel, 0, {});
    for (; panel < s.panel_end; ++panel) sized.only_of_one(s, panel, 0, {});
    return;
  }
  for (int panel = s.panel_begin; panel < s.panel_end; ++panel) {
    const int64_t share = panel + 1 < s.panel_end ? s.panel_bytes / num_tiles : 0;
    const char* next = PanelAt(s, share > 0 ? panel + 1 : panel);
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int begin = s.rows * tile / num_tiles;
      const int rows = s.rows * (tile + 1) / num_tiles - begin;
      functions[rows].one_of_several(s, panel, begin, {next + tile * share, share});
    }
  }
}

}  // namespace diffserve::DS_ISA
