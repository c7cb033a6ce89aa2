// SPDX-License-Identifier: Apache-2.0
// The scalar side of each WeightFormat, for packers, lookups, references and sizes.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

#include "kernels/base/dtype.h"
#include "kernels/ops/weight_format.h"
#include "kernels/process/check.h"

namespace diffserve {

struct Float32WeightCodec {
  using Panel = Float32Panel;
  static constexpr DType kDType = DType::kFloat32;
  static float Encode(float value) { return value; }
  static float Decode(float element) { return element; }
};
struct BFloat16WeightCodec {
  using Panel = BFloat16Panel;
  static constexpr DType kDType = DType::kBFloat16;
  static BFloat16 Encode(float value) { return FloatToBFloat16(value); }
  static float Decode(BFloat16 element) { return BFloat16ToFloat(element); }
};
struct Float16WeightCodec {
  using Panel = Float16Panel;
  static constexpr DType kDType = DType::kFloat16;
  static uint16_t Encode(float value) { return FloatToFloat16(value); }
  static float Decode(uint16_t element) { return Float16ToFloat(element); }
};

// Calls use(codec) with the format's codec. REQUIRES: !IsQuantized(format).
template <typename Use>
constexpr decltype(auto) WithCodec(WeightFormat format, Use&& use) {
  switch (format) {
    case WeightFormat::kFloat32:
      return use(Float32WeightCodec());
    case WeightFormat::kBFloat16:
      return use(BFloat16WeightCodec());
    case WeightFormat::kFloat16:
      return use(Float16WeightCodec());
    case WeightFormat::kInt8:
    case WeightFormat::kInt4:
    case WeightFormat::kFp8E4M3:
      break;
  }
  DS_CHECK(false, "not a format of numbers");
}

// Rounds to nearest even. REQUIRES: |value| < 2^22.
inline int RoundedToInt(float value) {
  return std::bit_cast<int>(value + 0x1.8p23f) - std::bit_cast<int>(0x1.8p23f);
}

// One output feature, symmetric: the largest magnitude becomes 127.
struct Int8WeightCodec {
  static float ScaleOf(std::span<const float> row) {
    float largest = 0;
    for (float value : row) largest = std::max(largest, std::abs(value));
    return largest / Int8Panel::kCodeMax;
  }
  static uint8_t Encode(float value, float scale) {
    const int code = scale == 0 ? 0 : RoundedToInt(value / scale);
    return static_cast<uint8_t>(Int8Panel::kZero +
                                std::clamp(code, -Int8Panel::kCodeMax, Int8Panel::kCodeMax));
  }
  static float Decode(uint8_t code, float scale) {
    return scale * static_cast<float>(code - Int8Panel::kZero);
  }
};

// One group: the value of the largest magnitude becomes -8, which uses all 16 codes.
struct Int4WeightCodec {
  // Returns a float16.
  static uint16_t ScaleOf(std::span<const float> group) {
    float largest = 0;
    for (float value : group) {
      if (std::abs(value) > std::abs(largest)) largest = value;
    }
    return FloatToFloat16(largest / -Int4Panel::kZero);
  }
  static uint8_t Encode(float value, uint16_t scale) {
    const float step = Float16ToFloat(scale);
    const int code = step == 0 ? 0 : RoundedToInt(value / step);
    return static_cast<uint8_t>(std::clamp(code + Int4Panel::kZero, 0, 15));
  }
  static float Decode(uint8_t code, uint16_t scale) {
    return Float16ToFloat(scale) * static_cast<float>(code - Int4Panel::kZero);
  }
};

// One output feature, or one token's activations: the largest magnitude becomes 448.
struct Fp8WeightCodec {
  static float ScaleOf(std::span<const float> row) {
    float largest = 0;
    for (float value : row) largest = std::max(largest, std::abs(value));
    return largest / kFp8E4M3Max;
  }
  static uint8_t Encode(float value, float scale) {
    return scale == 0 ? 0 : FloatToFp8E4M3(value / scale);
  }
  static float Decode(uint8_t code, float scale) { return scale * Fp8E4M3ToFloat(code); }
};

// Type of one element, and the default type of KV pages. REQUIRES: !IsQuantized(format).
constexpr DType DTypeOf(WeightFormat format) {
  return WithCodec(format, [](auto codec) { return codec.kDType; });
}
constexpr WeightFormat WeightFormatOf(DType dtype) {
  for (WeightFormat format : kFloatFormats) {
    if (DTypeOf(format) == dtype) return format;
  }
  return WeightFormat::kFloat32;
}
constexpr std::string_view NameOf(WeightFormat format) {
  if (format == WeightFormat::kInt8) return "int8";
  if (format == WeightFormat::kInt4) return "int4";
  if (format == WeightFormat::kFp8E4M3) return "fp8";
  return NameOf(DTypeOf(format));
}

// Bytes of a panel of `columns` output features.
constexpr int64_t PanelBytes(WeightFormat format, int64_t in_features, int columns) {
  if (format == WeightFormat::kInt8)
    return NumQuantGroups(in_features) * Int8Panel::GroupBytes(columns);
  if (format == WeightFormat::kInt4)
    return NumQuantGroups(in_features) * Int4Panel::GroupBytes(columns);
  return WithCodec(format, [&](auto codec) {
    using Panel = typename decltype(codec)::Panel;
    const int64_t depth = (in_features + Panel::kInterleave - 1) / Panel::kInterleave *
                          Panel::kInterleave;
    return depth * columns * static_cast<int64_t>(sizeof(typename Panel::Element));
  });
}

// Bytes of a matrix, without the padding of its panels.
constexpr size_t WeightBytes(WeightFormat format, int64_t out_features, int64_t in_features) {
  const size_t elements = static_cast<size_t>(out_features) * static_cast<size_t>(in_features);
  const size_t groups = static_cast<size_t>(out_features * NumQuantGroups(in_features));
  if (format == WeightFormat::kInt8 || format == WeightFormat::kFp8E4M3)
    return elements + static_cast<size_t>(out_features) * sizeof(float);
  if (format == WeightFormat::kInt4) return elements / 2 + groups * sizeof(uint16_t);
  return elements * SizeOf(DTypeOf(format));
}

}  // namespace diffserve
