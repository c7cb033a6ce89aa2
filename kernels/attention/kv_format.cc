// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/kv_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "kernels/attention/hadamard.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

// For formats without scales.
struct ScalarCodec {
  KvCodec description;
  float (*value)(const std::byte* page, int offset);
  void (*set)(std::byte* page, int offset, float value);
};

template <typename Codec>
constexpr ScalarCodec ScalarOf() {
  using Element = typename Codec::Element;
  return {Codec::Description(),
          [](const std::byte* page, int offset) {
            return Codec::Decode(reinterpret_cast<const Element*>(page)[offset]);
          },
          [](std::byte* page, int offset, float value) {
            reinterpret_cast<Element*>(page)[offset] = Codec::Encode(value);
          }};
}

constexpr ScalarCodec kCodecs[] = {ScalarOf<Float32Codec>(), ScalarOf<BFloat16Codec>(),
                                   ScalarOf<Float16Codec>()};

const ScalarCodec& CodecOf(DType dtype) {
  const auto* found = std::ranges::find(
      kCodecs, dtype, [](const ScalarCodec& codec) { return codec.description.dtype; });
  DS_CHECK(found != std::end(kCodecs), "no codec of K and V has this dtype");
  return *found;
}

constexpr KvCodec kCodesWithScales[] = {Int8Codec::Description(), Int8KInt4VCodec::Description(),
                                        Int4Codec::Description(), Fp8E4M3Codec::Description()};

KvCodec DescriptionOf(DType dtype) {
  const auto* found = std::ranges::find(kCodesWithScales, dtype, &KvCodec::dtype);
  return found != std::end(kCodesWithScales) ? *found : CodecOf(dtype).description;
}

int64_t ScaleAt(const KvFormat& format, int scale) {
  return format.ScaleBegin() + int64_t{scale} * format.codec.scale_bits / 8;
}
float ScaleOf(const KvFormat& format, const std::byte* page, int scale) {
  float factor;
  std::memcpy(&factor, page + ScaleAt(format, scale), sizeof(factor));
  return factor;
}

}  // namespace

bool HasCodes(DType dtype) {
  return std::ranges::find(kCodesWithScales, dtype, &KvCodec::dtype) != std::end(kCodesWithScales);
}

namespace {

// ---- Codes: `offset` counts codes of that width from the page's begin.

int FourBitsAt(const std::byte* page, int offset) {
  return std::to_integer<int>(page[offset / 2] >> offset % 2 * 4) & FourBits::kMaxCode;
}
float FourBitValue(const std::byte* page, int offset, float scale) {
  const int units = FourBitsAt(page, offset) * FourBits::kZeroUnits - FourBits::ZeroOf(scale);
  return static_cast<float>(units) / FourBits::kZeroUnits * FourBits::StepOf(scale);
}

float EightBitValue(DType dtype, std::byte stored, int zero, float scale) {
  const auto code = std::to_integer<uint8_t>(stored);
  if (dtype == DType::kFp8E4M3) return Fp8E4M3ToFloat(code) * scale;
  return static_cast<float>(zero == 0 ? static_cast<int8_t>(code) : code - zero) * scale;
}

struct ValueRange {
  double min = 0;
  double max = 0;
  bool is_finite = true;
};
ValueRange RangeOf(std::span<const double> values) {
  ValueRange range;
  for (double value : values) {
    range.min = std::min(range.min, value);
    range.max = std::max(range.max, value);
    range.is_finite = range.is_finite && std::isfinite(value);
  }
  return range;
}

// Quantises numbers that share a scale and returns the scale. The i-th code goes to offset_of(i).
template <typename OffsetOf>
float SetFourBits(std::byte* page, std::span<const double> values, OffsetOf offset_of) {
  const ValueRange range = RangeOf(values);
  const float step = FourBits::StepOf(
      static_cast<float>((range.max - range.min) / FourBits::kMaxCode));
  const bool is_finite = range.is_finite && std::isfinite(step);
  const bool is_zero = !is_finite || step == 0;
  const double zero = is_zero ? 0 : std::nearbyint(-range.min / step * FourBits::kZeroUnits);
  for (int i = 0; i < static_cast<int>(values.size()); ++i) {
    const double value = values[static_cast<size_t>(i)];
    const double code = is_zero ? 0 : std::nearbyint(value / step + zero / FourBits::kZeroUnits);
    const int offset = offset_of(i);
    const int shift = offset % 2 * 4;
    std::byte& both = page[offset / 2];
    both = (both & ~(std::byte{FourBits::kMaxCode} << shift)) |
           static_cast<std::byte>(std::clamp(code, 0.0, double{FourBits::kMaxCode})) << shift;
  }
  if (!is_finite) return std::numeric_limits<float>::quiet_NaN();
  return FourBits::ScaleOf(step, static_cast<int>(zero));
}

// The same in 8 bits: whole numbers with zero at `zero`, or E4M3.
template <typename OffsetOf>
float SetEightBits(std::byte* page, std::span<const double> values, DType dtype, int zero,
                   OffsetOf offset_of) {
  const bool is_fp8 = dtype == DType::kFp8E4M3;
  const double max = is_fp8 ? double{kFp8E4M3Max} : Int8Codec::kMaxCode;
  const ValueRange range = RangeOf(values);
  const double largest = std::max(range.max, -range.min);  // not -0
  const bool is_zero = !range.is_finite || largest == 0;
  for (int i = 0; i < static_cast<int>(values.size()); ++i) {
    const double value = values[static_cast<size_t>(i)];
    const double code = is_zero ? 0 : value * max / largest;
    page[offset_of(i)] = is_fp8 ? static_cast<std::byte>(FloatToFp8E4M3(static_cast<float>(code)))
                                : static_cast<std::byte>(static_cast<int>(std::nearbyint(code)) +
                                                         zero);
  }
  return range.is_finite ? static_cast<float>(largest / max)
                         : std::numeric_limits<float>::quiet_NaN();
}

// Transforms each part of a row that has its own scale.
void Transform(std::vector<double>& row, int part) {
  std::vector<double> scratch(static_cast<size_t>(part));
  for (size_t begin = 0; begin < row.size(); begin += scratch.size())
    Hadamard(row.data() + begin, part, scratch.data());
}

}  // namespace

KvFormat KvFormat::Of(const DiffSpec& spec, int page_size, DType dtype, KvArrangement arrangement) {
  KvFormat format = {page_size,  spec.num_kv_groups,   spec.k_maps, spec.head_dim,
                     spec.v_dim, DescriptionOf(dtype), arrangement};
  if (format.codec.scale_bits > 0) format.codec.scale_group = spec.head_dim;
  return format;
}

float KValue(const KvFormat& format, const std::byte* page, int map, int dim, int slot) {
  const int offset = format.KOffset(map, dim, slot);
  if (format.codec.scale_bits == 0) return CodecOf(format.codec.dtype).value(page, offset);
  const float scale = ScaleOf(format, page, format.KScale(map, dim, slot));
  if (format.codec.k_bits == 4) return FourBitValue(page, offset, scale);
  return EightBitValue(format.codec.dtype, page[offset], Int8Codec::kZero, scale);
}

float VValue(const KvFormat& format, const std::byte* page, int dim, int slot) {
  const int offset = format.VOffset(dim, slot);
  if (format.codec.scale_bits == 0) return CodecOf(format.codec.dtype).value(page, offset);
  const float scale = ScaleOf(format, page, format.VScale(dim, slot));
  if (format.codec.v_bits == 4) return FourBitValue(page, offset, scale);
  return EightBitValue(format.codec.dtype, page[offset], 0, scale);
}

std::vector<double> KRow(const KvFormat& format, const std::byte* page, int map, int slot) {
  std::vector<double> row(static_cast<size_t>(format.head_dim));
  for (int dim = 0; dim < format.head_dim; ++dim)
    row[static_cast<size_t>(dim)] = KValue(format, page, map, dim, slot);
  if (format.codec.transforms_k()) Transform(row, format.codec.scale_group);
  return row;
}

std::vector<double> VRow(const KvFormat& format, const std::byte* page, int slot) {
  std::vector<double> row(static_cast<size_t>(format.v_dim));
  for (int dim = 0; dim < format.v_dim; ++dim)
    row[static_cast<size_t>(dim)] = VValue(format, page, dim, slot);
  if (format.codec.transforms_v()) Transform(row, format.codec.scale_group);
  return row;
}

void SetK(const KvFormat& format, std::byte* page, int map, int slot, std::span<const float> k) {
  const KvCodec& codec = format.codec;
  const auto offset_of = [&](int dim) { return format.KOffset(map, dim, slot); };
  if (codec.scale_bits == 0) {
    const ScalarCodec& scalar = CodecOf(codec.dtype);
    for (size_t dim = 0; dim < k.size(); ++dim)
      scalar.set(page, offset_of(static_cast<int>(dim)), k[dim]);
    return;
  }
  std::vector<double> row(k.begin(), k.end());
  if (codec.transforms_k()) Transform(row, codec.scale_group);
  const float scale = codec.k_bits == 4
                          ? SetFourBits(page, row, offset_of)
                          : SetEightBits(page, row, codec.dtype, Int8Codec::kZero, offset_of);
  std::memcpy(page + ScaleAt(format, format.KScale(map, 0, slot)), &scale, sizeof(scale));
}

void SetV(const KvFormat& format, std::byte* page, int slot, std::span<const float> v) {
  const KvCodec& codec = format.codec;
  if (codec.scale_bits == 0) {
    const ScalarCodec& scalar = CodecOf(codec.dtype);
    for (size_t dim = 0; dim < v.size(); ++dim)
      scalar.set(page, format.VOffset(static_cast<int>(dim), slot), v[dim]);
    return;
  }
  std::vector<double> row(v.begin(), v.end());
  if (codec.transforms_v()) Transform(row, codec.scale_group);
  const size_t part = static_cast<size_t>(codec.scale_group);
  for (size_t begin = 0; begin < row.size(); begin += part) {
    const int first = static_cast<int>(begin);
    const std::span<const double> values = std::span(row).subspan(begin, part);
    const auto offset_of = [&](int dim) { return format.VOffset(first + dim, slot); };
    const float scale = codec.v_bits == 4 ? SetFourBits(page, values, offset_of)
                                          : SetEightBits(page, values, codec.dtype, 0, offset_of);
    std::memcpy(page + ScaleAt(format, format.VScale(first, slot)), &scale, sizeof(scale));
  }
}

}  // namespace diffserve
