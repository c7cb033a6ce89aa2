// SPDX-License-Identifier: Apache-2.0
// Linear layers by dot products of packed activations.
//
// bfloat16 (levels that have its dot product): an output element is one chain over pairs of
// in_features in ascending order. int8 and int4: the products of a group of kQuantGroup in_features
// are summed in integers, which is exact in any order. The groups' sums, times their scales, are
// one chain in ascending order, with the same bits at every level.
#include "kernels/ops/linear_panels.h"

namespace diffserve::DS_ISA {

namespace {

constexpr int kPanel = kPanelColumns;

[[gnu::always_inline]] inline int32_t FourBytes(const void* p) {
  int32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof(bytes));
  return bytes;
}

// The weight code that stands for 0: (code - zero) x = code x - zero x.
constexpr int CodeZeroOf(WeightFormat format) {
  return format == WeightFormat::kInt4 ? Int4Panel::kZero : kDotsUnsigned ? Int8Panel::kZero : 0;
}

// ---- Activations.

void PackInt8(const LinearInputSlice& slice, int row) {
  const LinearX& to = slice.to;
  const int64_t groups = NumQuantGroups(slice.in_features);
  const float* x = slice.x + row * slice.x_stride;
  int8_t* codes = static_cast<int8_t*>(to.values) + row * to.stride;
  constexpr int kVectors = kQuantGroup / kLanes;
  for (int64_t group = 0; group < groups; ++group, codes += kQuantGroup) {
    F32 values[kVectors];
    F32 largest = Zero(), poison = Zero();
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = group * kQuantGroup + v * kLanes;
      const int64_t left = slice.in_features - at;
      values[v] = left >= kLanes ? Load(x + at)
                  : left > 0     ? LoadFirst(x + at, static_cast<int>(left))
                                 : Zero();
      largest = Max(largest, Max(values[v], Sub(Zero(), values[v])));
      poison = Fma(values[v], Zero(), poison);  // NaN for a NaN and for an infinity
    }
    const float max = ReduceMax(largest);
    constexpr float kMinScaled = 0x1p-100f;  // a group below it counts as zeros
    const F32 inverse = Set1(max < kMinScaled ? 0.0f : 127.0f / max);
    I32 sum = Set1Int(0);
    for (int v = 0; v < kVectors; ++v) {
      const I32 code = ToInt(Mul(values[v], inverse));
      StoreInt8(codes + v * kLanes, code);
      sum = Add(sum, code);
    }
    const int64_t at = row * groups + group;
    const float not_finite = ReduceAdd(poison);
    to.scales[at] = (max < kMinScaled ? 0.0f : max * (1.0f / 127.0f)) + not_finite;
    // The codes of numbers that are not finite are meaningless.
    to.offsets[at] = not_finite == 0 ? -CodeZeroOf(slice.format) * ReduceAdd(sum) : 0;
  }
}

#if defined(DS_HAS_BF16_DOT)

void PackBFloat16(const LinearInputSlice& slice, int row) {
  const float* x = slice.x + row * slice.x_stride;
  uint16_t* to = static_cast<uint16_t*>(slice.to.values) + row * slice.to.stride;
  for (int64_t at = 0; at < slice.to.stride; at += kLanes) {
    const int64_t left = slice.in_features - at;
    StoreBf16(to + at, left >= kLanes ? Load(x + at)
                       : left > 0     ? LoadFirst(x + at, static_cast<int>(left))
                                      : Zero());
  }
}

// ---- bfloat16 weights: R rows by NP panels.

template <int R, int NP, bool kOneTile>
void BFloat16Tile(const LinearSlice& s, int panel, int row, const Fetch& fetch) {
  constexpr int kStepBytes = 2 * kPanel * static_cast<int>(sizeof(BFloat16));
  const char* w = PanelAt(s, panel);
  const uint16_t* x = static_cast<const uint16_t*>(s.x.values) + row * s.x.stride;
  F32 acc[R][NP][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int np = 0; np < NP; ++np) acc[r][np][0] = acc[r][np][1] = Zero();
  }
  FetchSteps<kOneTile> fetches(fetch, (s.in_features + 1) / 2);
  for (int k = 0; k < s.in_features; k += 2, w += kStepBytes, x += 2) {
    Bf16Pairs pairs[NP][2];
#pragma GCC unroll 4
    for (int np = 0; np < NP; ++np) {
      const char* from = w + np * s.panel_bytes;
      if constexpr (R >= 2) fetches.Step(from);
      pairs[np][0] = LoadPairs(reinterpret_cast<const uint16_t*>(from));
      pairs[np][1] = LoadPairs(reinterpret_cast<const uint16_t*>(from) + 2 * kLanes);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Bf16Pairs value = Set1Pair(static_cast<uint32_t>(FourBytes(x + r * s.x.stride)));
#pragma GCC unroll 4
      for (int np = 0; np < NP; ++np) {
        acc[r][np][0] = DotPairs(acc[r][np][0], pairs[np][0], value);
        acc[r][np][1] = DotPairs(acc[r][np][1], pairs[np][1], value);
      }
    }
  }
  alignas(64) float sums[R][NP * kPanel];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int np = 0; np < NP; ++np) {
      Store(sums[r] + np * kPanel, acc[r][np][0]);
      Store(sums[r] + np * kPanel + kLanes, acc[r][np][1]);
    }
  }
  for (int np = 0; np < NP; ++np) Finish(s, panel + np, row, R, sums[0] + np * kPanel, NP * kPanel);
}

// Panels side by side, for eight or more independent chains.
constexpr int PanelsAtOnce(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

// x 2 vectors, of one register or two: 24 of 32 accumulate.
constexpr int kBFloat16TileRows = kLanes == 8 ? 6 : 12;

template <int R>
constexpr WholeDepthFunctions kOfBFloat16 = {BFloat16Tile<R, 1, false>,
                                             BFloat16Tile<R, PanelsAtOnce(R), true>,
                                             BFloat16Tile<R, 1, true>, PanelsAtOnce(R)};
constexpr WholeDepthFunctions kBFloat16Tiles[] = {
    {},
    kOfBFloat16<1>,
    kOfBFloat16<2>,
    kOfBFloat16<3>,
    kOfBFloat16<4>,
    kOfBFloat16<5>,
    kOfBFloat16<6>,
#if defined(__AVX512F__)
    kOfBFloat16<7>,
    kOfBFloat16<8>,
    kOfBFloat16<9>,
    kOfBFloat16<10>,
    kOfBFloat16<11>,
    kOfBFloat16<12>,
#endif
};

#endif

// ---- int8 and int4 weights: R rows by one panel. Codes<R>::Step adds the products of kStepDepth
// in_features, whose codes in the panel are kStepBytes.

// kPrefetchFromRows: with fewer rows the hardware's prefetcher keeps up. kRepeats: see IntegerTile.
struct Int8Codes {
  static constexpr int kStepDepth = 4;
  static constexpr int kStepBytes = 4 * kPanel;
  static constexpr int kPrefetchFromRows = 2;
  static constexpr int kRepeats = 1;
  static constexpr bool kHasGroupScales = false;
  static constexpr int64_t GroupBytes() { return Int8Panel::GroupBytes(kPanel); }

  template <int R>
  [[gnu::always_inline]] static void Step(I32 (&acc)[R][2], const char* w, const int8_t* x,
                                          int64_t x_stride) {
    Quads codes[2] = {LoadQuads(w), LoadQuads(w + 4 * kLanes)};
    if constexpr (!kDotsUnsigned) {
      for (Quads& code : codes) code = FlipTopBits(code);  // now signed
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Quads value = Set1Quad(FourBytes(x + r * x_stride));
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        acc[r][v] = kDotsUnsigned ? DotQuads(acc[r][v], codes[v], value)
                                  : DotSigned(acc[r][v], codes[v], value);
      }
    }
  }
};

struct Int4Codes {
  static constexpr int kStepDepth = 8;
  static constexpr int kStepBytes = 4 * kPanel;
  static constexpr int kPrefetchFromRows = 1;
  static constexpr int kRepeats = 2;
  static constexpr bool kHasGroupScales = true;
  static constexpr int64_t GroupBytes() { return Int4Panel::GroupBytes(kPanel); }

  template <int R>
  [[gnu::always_inline]] static void Step(I32 (&acc)[R][2], const char* w, const int8_t* x,
                                          int64_t x_stride) {
    const Quads both[2] = {LoadQuads(w), LoadQuads(w + 4 * kLanes)};
    const Quads lower[2] = {LowerHalves(both[0]), LowerHalves(both[1])};
    const Quads upper[2] = {UpperHalves(both[0]), UpperHalves(both[1])};
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Quads first = Set1Quad(FourBytes(x + r * x_stride));
      const Quads second = Set1Quad(FourBytes(x + r * x_stride + 4));
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        acc[r][v] = DotTwoQuads(acc[r][v], lower[v], first, upper[v], second);
    }
  }
};

// The only tile of its panel repeats itself over the slice's rows, group by group, up to
// Codes::kRepeats times; the last repetition may compute rows of the one before again.
template <typename Codes, int R, bool kOneTile>
void IntegerTile(const LinearSlice& s, int panel, int row, const Fetch& fetch) {
  // With few rows, more sums than rows need hide the latency.
  constexpr int kSums = R == 1 ? 4 : R <= 3 ? 2 : 1;
  constexpr int kSteps = kQuantGroup / Codes::kStepDepth;
  constexpr int kRepeats = kOneTile ? Codes::kRepeats : 1;
  const int repeats = kRepeats == 1 ? 1 : (s.rows + R - 1) / R;
  const auto first_row = [&](int repeat) { return repeat == 0 ? row : s.rows - R; };
  static_assert(kRepeats <= 2);
  const int64_t groups = NumQuantGroups(s.in_features);
  const char* w = PanelAt(s, panel);
  // In L1, read and written once per group: the registers are for the group's integers.
  alignas(64) float chains[kRepeats][R][kPanel] = {};
  FetchSteps<kOneTile> fetches(fetch, groups * kSteps);
  for (int64_t group = 0; group < groups; ++group, w += Codes::GroupBytes()) {
#pragma GCC unroll 1
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const int64_t first = first_row(repeat);
      const int8_t* x = static_cast<const int8_t*>(s.x.values) + first * s.x.stride +
                        group * kQuantGroup;
      const float* scales = s.x.scales + first * groups + group;
      const int32_t* offsets = s.x.offsets + first * groups + group;
      I32 sums[kSums][R][2];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        sums[0][r][0] = sums[0][r][1] = Set1Int(offsets[r * groups]);
#pragma GCC unroll 4
        for (int i = 1; i < kSums; ++i) sums[i][r][0] = sums[i][r][1] = Set1Int(0);
      }
      // A loop, as prefetches must stay apart: those of a whole group at once halve the speed.
#pragma GCC unroll 1
      for (int begin = 0; begin < kSteps; begin += kSums) {
#pragma GCC unroll 4
        for (int i = 0; i < kSums; ++i) {
          const char* from = w + (begin + i) * Codes::kStepBytes;
          if (R >= Codes::kPrefetchFromRows && repeat == 0) fetches.Step(from);
          Codes::template Step<R>(sums[i], from, x + (begin + i) * Codes::kStepDepth, s.x.stride);
        }
      }
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        F32 weight_scale = Zero();
        if constexpr (Codes::kHasGroupScales) {
          weight_scale = LoadF16(
              reinterpret_cast<const uint16_t*>(w + Int4Panel::ScalesAt(kPanel)) + v * kLanes);
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          I32 sum = sums[0][r][v];
#pragma GCC unroll 4
          for (int i = 1; i < kSums; ++i) sum = Add(sum, sums[i][r][v]);
          F32 scale = Set1(scales[r * groups]);
          if constexpr (Codes::kHasGroupScales) scale = Mul(scale, weight_scale);
          float* chain = chains[repeat][r] + v * kLanes;
          Store(chain, FmaRoundedOnce(ToFloat(sum), scale, Load(chain)));
        }
      }
    }
  }
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const int written = repeat == 0 ? 0 : R - first_row(repeat);
    Finish(s, panel, first_row(repeat) + written, R - written, chains[repeat][written], kPanel);
  }
}

template <typename Codes, int R>
constexpr WholeDepthFunctions kOfIntegers = {
    IntegerTile<Codes, R, false>, IntegerTile<Codes, R, true>, IntegerTile<Codes, R, true>, 1};
template <typename Codes>
constexpr WholeDepthFunctions kIntegerTiles[] = {
    {},
    kOfIntegers<Codes, 1>,
    kOfIntegers<Codes, 2>,
    kOfIntegers<Codes, 3>,
    kOfIntegers<Codes, 4>,
    kOfIntegers<Codes, 5>,
    kOfIntegers<Codes, 6>,
#if defined(__AVX512F__) || defined(DS_PAIRED)
    kOfIntegers<Codes, 7>,
    kOfIntegers<Codes, 8>,
    kOfIntegers<Codes, 9>,
    kOfIntegers<Codes, 10>,
    kOfIntegers<Codes, 11>,
    kOfIntegers<Codes, 12>,
#endif
};
// Rows per tile at most. Few rows are as few tiles as the registers allow: memory is the limit.
// More rows are tiles of the size that computes fastest.
template <typename Codes>
constexpr int IntegerTileRows(int rows) {
  if (kLanes == 8) return rows <= 12 ? 6 : 4;
  return rows <= 12 * Codes::kRepeats ? 12 : 10;
}
template <typename Codes>
void WalkIntegers(const LinearSlice& slice) {
  WalkPanels(slice, kIntegerTiles<Codes>, IntegerTileRows<Codes>(slice.rows), Codes::kRepeats);
}

LinearInput LinearInputOf(WeightFormat format) {
  if (IsQuantized(format)) return LinearInput::kInt8;
#if defined(DS_HAS_BF16_DOT)
  if (format == WeightFormat::kBFloat16) return LinearInput::kBFloat16;
#endif
  return LinearInput::kFloat32;
}

void PackLinearInput(const LinearInputSlice& slice) {
  for (int row = slice.begin; row < slice.end; ++row) {
    if (slice.to.kind == LinearInput::kInt8) PackInt8(slice, row);
#if defined(DS_HAS_BF16_DOT)
    if (slice.to.kind == LinearInput::kBFloat16) PackBFloat16(slice, row);
#endif
  }
}

void LinearOfDots(const LinearSlice& slice) {
  if (slice.rows <= 0 || slice.panel_begin >= slice.panel_end) return;
  switch (slice.format) {
    case WeightFormat::kInt8:
      return WalkIntegers<Int8Codes>(slice);
    case WeightFormat::kInt4:
      return WalkIntegers<Int4Codes>(slice);
    default:
      break;
  }
#if defined(DS_HAS_BF16_DOT)
  WalkPanels(slice, kBFloat16Tiles, kBFloat16TileRows);
#endif
}

}  // namespace
}  // namespace diffserve::DS_ISA

namespace diffserve {

const LinearDotKernels& LinearDotKernels::DS_ISA() {
  static constexpr LinearDotKernels kKernels = {.kind = DS_ISA::LinearInputOf,
                                                .pack = DS_ISA::PackLinearInput,
                                                .linear = DS_ISA::LinearOfDots};
  return kKernels;
}

}  // namespace diffserve
