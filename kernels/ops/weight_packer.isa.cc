// SPDX-License-Identifier: Apache-2.0
// Quantises rows of a checkpoint into panels: bitwise as the codecs of weight_codec.h define.
#include "kernels/base/simd.h"
#include "kernels/ops/weight_packer_kernel.h"

namespace diffserve::DS_ISA {

namespace {

constexpr int kPanel = kPanelColumns;
constexpr int kVectors = kQuantGroup / kLanes;
// Groups of a row that are written before the next row's: their part of the panel stays in L1.
constexpr int64_t kGroupsAtOnce = 8;

struct Float32Row {
  using Element = float;
  static F32 All(const float* p) { return Load(p); }
  static F32 First(const float* p, int n) { return LoadFirst(p, n); }
};
struct BFloat16Row {
  using Element = uint16_t;
  static F32 All(const uint16_t* p) { return LoadBf16(p); }
  static F32 First(const uint16_t* p, int n) { return LoadBf16First(p, n); }
};
struct Float16Row {
  using Element = uint16_t;
  static F32 All(const uint16_t* p) { return LoadF16(p); }
  static F32 First(const uint16_t* p, int n) { return LoadF16First(p, n); }
};

// A group of a row, with zeros after its end.
struct Group {
  F32 v[kVectors];
};
template <typename Row>
[[gnu::always_inline]] inline Group LoadGroup(const void* row, int64_t group, int64_t in_features) {
  Group values;
  for (int i = 0; i < kVectors; ++i) {
    const int64_t at = group * kQuantGroup + i * kLanes, left = in_features - at;
    const auto* p = static_cast<const typename Row::Element*>(row) + at;
    values.v[i] = left >= kLanes ? Row::All(p)
                  : left > 0     ? Row::First(p, static_cast<int>(left))
                                 : Zero();
  }
  return values;
}

// The inputs of a scale. Max may drop a NaN, so `poison` records it: it is a NaN if a value is a
// NaN or an infinity, else 0.
struct Extremes {
  F32 high = Zero();  // of the values
  F32 low = Zero();   // of the values with the other sign
  F32 poison = Zero();

  [[gnu::always_inline]] void Add(const Group& values) {
    for (const F32& v : values.v) {
      high = Max(high, v);
      low = Max(low, Sub(Zero(), v));
      poison = Fma(v, Zero(), poison);
    }
  }
  bool is_finite() const { return ReduceAdd(poison) == 0; }
};

// Rounded values / scale within [low, high], plus `zero`, one byte each.
[[gnu::always_inline]] inline void StoreCodes(const Group& values, float scale, float low,
                                              float high, int32_t zero, uint8_t* codes) {
  const F32 step = Set1(scale);
  for (int i = 0; i < kVectors; ++i) {
    const F32 bounded = Min(Set1(high), Max(Set1(low), Div(values.v[i], step)));
    const I32 code = scale == 0 ? Set1Int(zero)
                                : diffserve::DS_ISA::Add(ToInt(bounded), Set1Int(zero));
    StoreInt8(reinterpret_cast<int8_t*>(codes) + i * kLanes, code);
  }
}

[[gnu::always_inline]] inline uint32_t Word(const uint8_t* codes) {
  uint32_t word;
  __builtin_memcpy(&word, codes, sizeof(word));
  return word;
}

// ---- int8.

template <typename Row>
bool Int8Scale(const void* row, int64_t in_features, float* scale) {
  Extremes extremes;
  const int64_t groups = (in_features + kQuantGroup - 1) / kQuantGroup;
  for (int64_t group = 0; group < groups; ++group)
    extremes.Add(LoadGroup<Row>(row, group, in_features));
  *scale = ReduceMax(Max(extremes.high, extremes.low)) / Int8Panel::kCodeMax;
  return extremes.is_finite();
}

template <typename Row>
void Int8Codes(const QuantizedPanel& to, int column, int64_t begin, int64_t end) {
  const int64_t in_features = column < to.num_rows ? to.in_features : 0;
  const void* row = column < to.num_rows ? to.rows[column].values : nullptr;
  for (int64_t group = begin; group < end; ++group) {
    // Codes around zero fit a signed byte; codes around kZero are the same with the top bit
    // flipped.
    uint8_t codes[kQuantGroup];
    StoreCodes(LoadGroup<Row>(row, group, in_features), to.scales[column], -Int8Panel::kCodeMax,
               Int8Panel::kCodeMax, 0, codes);
    uint8_t* panel = to.panel + group * kQuantGroup * kPanel + column * 4;
    for (int quad = 0; quad < kQuantGroup / 4; ++quad) {
      const uint32_t word = Word(codes + quad * 4) ^ 0x80808080u;
      __builtin_memcpy(panel + quad * kPanel * 4, &word, sizeof(word));
    }
  }
}

// ---- int4.

// The value of the largest magnitude, the first of several.
[[gnu::always_inline]] inline float Int4Extreme(const Group& values, const Extremes& extremes) {
  const float high = ReduceMax(extremes.high), low = ReduceMax(extremes.low);
  if (high > low) return high;
  if (low > high) return -low;
  float kept[kQuantGroup];
  for (int i = 0; i < kVectors; ++i) Store(kept + i * kLanes, values.v[i]);
  for (float value : kept) {
    if (high > 0 && (value == high || value == -high)) return value;
  }
  return 0;
}

template <typename Row>
bool Int4Codes(const QuantizedPanel& to, int column, int64_t begin, int64_t end) {
  const int64_t in_features = column < to.num_rows ? to.in_features : 0;
  const void* row = column < to.num_rows ? to.rows[column].values : nullptr;
  constexpr int64_t kScalesAt = int64_t{kQuantGroup / 2} * kPanel;
  constexpr int64_t kGroupBytes = kScalesAt + 2 * kPanel;
  bool fits = true;
  for (int64_t group = begin; group < end; ++group) {
    const Group values = LoadGroup<Row>(row, group, in_features);
    Extremes extremes;
    extremes.Add(values);
    const float extreme = Int4Extreme(values, extremes);
    fits = fits && extremes.is_finite() && extreme <= kInt4WeightMax && -extreme <= kInt4WeightMax;
    const uint16_t scale = FloatToFloat16(extreme / -Int4Panel::kZero);
    uint8_t codes[kQuantGroup];
    StoreCodes(values, Float16ToFloat(scale), -Int4Panel::kZero, 15 - Int4Panel::kZero,
               Int4Panel::kZero, codes);
    uint8_t* panel = to.panel + group * kGroupBytes;
    for (int quad = 0; quad < kQuantGroup / 8; ++quad) {
      const uint32_t word = Word(codes + quad * 8) | Word(codes + quad * 8 + 4) << 4;
      __builtin_memcpy(panel + (quad * kPanel + column) * 4, &word, sizeof(word));
    }
    __builtin_memcpy(panel + kScalesAt + column * 2, &scale, sizeof(scale));
  }
  return fits;
}

// Calls use(row type) for a column of the panel.
template <typename Use>
[[gnu::always_inline]] inline bool WithRow(const QuantizedPanel& to, int column, const Use& use) {
  const DType dtype = column < to.num_rows ? to.rows[column].dtype : DType::kFloat32;
  return dtype == DType::kFloat32    ? use(Float32Row())
         : dtype == DType::kBFloat16 ? use(BFloat16Row())
                                     : use(Float16Row());
}

bool PackQuantizedPanel(const QuantizedPanel& to) {
  const bool is_int8 = to.format == WeightFormat::kInt8;
  const int64_t groups = (to.in_features + kQuantGroup - 1) / kQuantGroup;
  bool fits = true;
  for (int column = 0; is_int8 && column < kPanel; ++column) {
    to.scales[column] = 0;
    if (column >= to.num_rows) continue;
    fits = fits && WithRow(to, column, [&](auto row) {
             return Int8Scale<decltype(row)>(to.rows[column].values, to.in_features,
                                             &to.scales[column]);
           });
  }
  if (!fits) return false;
  for (int64_t begin = 0; begin < groups; begin += kGroupsAtOnce) {
    const int64_t end = begin + kGroupsAtOnce < groups ? begin + kGroupsAtOnce : groups;
    for (int column = 0; column < kPanel; ++column) {
      fits = fits && WithRow(to, column, [&](auto row) {
               if (!is_int8) return Int4Codes<decltype(row)>(to, column, begin, end);
               Int8Codes<decltype(row)>(to, column, begin, end);
               return true;
             });
    }
  }
  return fits;
}

}  // namespace
}  // namespace diffserve::DS_ISA

namespace diffserve {

const PackerKernels& PackerKernels::DS_ISA() {
  static constexpr PackerKernels kKernels = {.pack = DS_ISA::PackQuantizedPanel};
  return kKernels;
}

}  // namespace diffserve
