#include "kernels/attention/kv_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "kernels/base/check.h"

namespace diffserve {
namespace {

// Where numbers stand for themselves.
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

KvCodec DescriptionOf(DType dtype) {
  return dtype == DType::kInt8 ? Int8Codec::Description() : CodecOf(dtype).description;
}

int64_t ScaleAt(const KvFormat& format, int scale) {
  return format.ScaleBegin() + int64_t{scale} * format.codec.scale_bits / 8;
}
float ScaleOf(const KvFormat& format, const std::byte* page, int scale) {
  float factor;
  std::memcpy(&factor, page + ScaleAt(format, scale), sizeof(factor));
  return factor;
}

// Numbers that share a scale: the code of the i'th, from `zero` on, goes to offset_of(i).
template <typename OffsetOf>
void SetScaled(const KvFormat& format, std::byte* page, std::span<const float> values, int scale,
               int zero, OffsetOf offset_of) {
  double largest = 0;
  bool is_finite = true;
  for (float value : values) {
    largest = std::max(largest, std::abs(double{value}));
    is_finite = is_finite && std::isfinite(value);
  }
  const float factor = is_finite ? static_cast<float>(largest / Int8Codec::kMost)
                                 : std::numeric_limits<float>::quiet_NaN();
  std::memcpy(page + ScaleAt(format, scale), &factor, sizeof(factor));
  const bool is_zero = !is_finite || largest == 0;
  for (int i = 0; i < static_cast<int>(values.size()); ++i) {
    const double value = values[static_cast<size_t>(i)];
    const double code = is_zero ? 0 : std::nearbyint(value * Int8Codec::kMost / largest);
    page[offset_of(i)] = static_cast<std::byte>(static_cast<int>(code) + zero);
  }
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
  if (format.codec.dtype != DType::kInt8) return CodecOf(format.codec.dtype).value(page, offset);
  const int code = static_cast<int>(page[offset]) - Int8Codec::kZero;
  return static_cast<float>(code) * ScaleOf(format, page, format.KScale(map, dim, slot));
}

float VValue(const KvFormat& format, const std::byte* page, int dim, int slot) {
  const int offset = format.VOffset(dim, slot);
  if (format.codec.dtype != DType::kInt8) return CodecOf(format.codec.dtype).value(page, offset);
  const int code = static_cast<int8_t>(page[offset]);
  return static_cast<float>(code) * ScaleOf(format, page, format.VScale(dim, slot));
}

void SetK(const KvFormat& format, std::byte* page, int map, int slot, std::span<const float> k) {
  const auto offset_of = [&](int dim) { return format.KOffset(map, dim, slot); };
  if (format.codec.dtype == DType::kInt8) {
    return SetScaled(format, page, k, format.KScale(map, 0, slot), Int8Codec::kZero, offset_of);
  }
  for (size_t dim = 0; dim < k.size(); ++dim)
    CodecOf(format.codec.dtype).set(page, offset_of(static_cast<int>(dim)), k[dim]);
}

void SetV(const KvFormat& format, std::byte* page, int slot, std::span<const float> v) {
  if (format.codec.dtype != DType::kInt8) {
    for (size_t dim = 0; dim < v.size(); ++dim)
      CodecOf(format.codec.dtype).set(page, format.VOffset(static_cast<int>(dim), slot), v[dim]);
    return;
  }
  const size_t part = static_cast<size_t>(format.codec.scale_group);
  for (size_t begin = 0; begin < v.size(); begin += part) {
    const int first = static_cast<int>(begin);
    SetScaled(format, page, v.subspan(begin, part), format.VScale(first, slot), 0,
              [&](int dim) { return format.VOffset(first + dim, slot); });
  }
}

}  // namespace diffserve
