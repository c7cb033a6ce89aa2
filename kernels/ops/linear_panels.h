// What the linear kernels of a level share: the walk over panels and tiles of rows, and what
// follows a finished sum. Only *.isa.cc files include this.
#pragma once

#include "kernels/base/simd.h"
#include "kernels/ops/linear_kernel.h"

namespace diffserve::DS_ISA {

inline const char* PanelAt(const LinearSlice& s, int panel) {
  return static_cast<const char*>(s.panels) + panel * s.panel_bytes;
}

// y of `rows` rows from `row` and of one panel's columns, from the finished sums.
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

// What a tile asks memory for meanwhile: the hardware alone keeps up with one row only.
struct Fetch {
  const char* from = nullptr;
  int64_t bytes = 0;
};

// It, spread evenly over a tile's steps, of which each may take 128 bytes.
class FetchSteps {
 public:
  FetchSteps(const Fetch& fetch, int64_t num_steps)
      : from_(fetch.from), step_((fetch.bytes << kFraction) / num_steps) {}

  // `offset`: of the panel in question from the first.
  [[gnu::always_inline]] void Ask(int64_t offset) const {
    const char* at = from_ + offset + (at_ >> kFraction);
    __builtin_prefetch(at, 0, 2);
    __builtin_prefetch(at + 64, 0, 2);
  }
  [[gnu::always_inline]] void Next() { at_ += step_; }

 private:
  static constexpr int kFraction = 8;
  const char* from_;
  int64_t step_;
  int64_t at_ = 0;
};

// A register tile over the whole depth: some rows from `row`, and some panels from `panel`.
using WholeDepthFunction = void (*)(const LinearSlice&, int panel, int row, const Fetch& fetch);
struct WholeDepthFunctions {
  WholeDepthFunction single;   // one panel
  WholeDepthFunction several;  // panels_at_once panels
  int panels_at_once;
};

// Tiles over the whole depth, by functions[number of rows], up to tile_rows. Each weight is read
// from memory once; later tiles find the panel in L2, and together they fetch the next one into it.
inline void WalkPanels(const LinearSlice& s, const WholeDepthFunctions* functions, int tile_rows) {
  constexpr int64_t kAheadBytes = 2048;  // where one tile reads all
  const int num_tiles = (s.rows + tile_rows - 1) / tile_rows;
  const int at_once = functions[s.rows / num_tiles].panels_at_once;
  int panel = s.panel_begin;
  while (panel < s.panel_end) {
    const bool several = num_tiles == 1 && panel + at_once <= s.panel_end;
    const int count = several ? at_once : 1;
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int begin = s.rows * tile / num_tiles;
      Fetch fetch = {PanelAt(s, panel) + kAheadBytes, s.panel_bytes};
      if (num_tiles > 1) {
        const bool is_last = panel + 1 == s.panel_end;
        fetch = {PanelAt(s, is_last ? panel : panel + 1) + s.panel_bytes * tile / num_tiles,
                 is_last ? 0 : s.panel_bytes / num_tiles};
      }
      const WholeDepthFunctions& sized = functions[s.rows * (tile + 1) / num_tiles - begin];
      (several ? sized.several : sized.single)(s, panel, begin, fetch);
    }
    panel += count;
  }
}

// The kernels of linear_dot.isa.cc, of the formats whose LinearInput is not float32.
void LinearOfDots(const LinearSlice& slice);

}  // namespace diffserve::DS_ISA
