// The scalar side of each WeightFormat, for packers, lookups, references and sizes. An int4 format
// would encode a group of values at once and count its scales in WeightBytes.
#pragma once

#include <cstddef>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"
#include "kernels/ops/weight_format.h"

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

// use(codec) with the format's codec.
template <typename Use>
constexpr decltype(auto) WithCodec(WeightFormat format, Use&& use) {
  switch (format) {
    case WeightFormat::kFloat32:
      return use(Float32WeightCodec());
    case WeightFormat::kBFloat16:
      return use(BFloat16WeightCodec());
    case WeightFormat::kFloat16:
      return use(Float16WeightCodec());
  }
  DS_CHECK(false, "unknown weight format");
}

// Of one element: what KV pages hold too where nothing else is asked for.
constexpr DType DTypeOf(WeightFormat format) {
  return WithCodec(format, [](auto codec) { return codec.kDType; });
}
constexpr WeightFormat WeightFormatOf(DType dtype) {
  for (WeightFormat format : kWeightFormats) {
    if (DTypeOf(format) == dtype) return format;
  }
  return WeightFormat::kFloat32;
}
constexpr std::string_view NameOf(WeightFormat format) { return NameOf(DTypeOf(format)); }

// Bytes of a matrix, without the padding of its panels.
constexpr size_t WeightBytes(WeightFormat format, int64_t out_features, int64_t in_features) {
  return static_cast<size_t>(out_features) * static_cast<size_t>(in_features) *
         SizeOf(DTypeOf(format));
}

}  // namespace diffserve
