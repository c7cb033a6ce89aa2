// SPDX-License-Identifier: Apache-2.0
// Works element by element, so any vectorisation by the compiler gives the same bits.
#include "kernels/attention/quantise_lanes.h"
#include "kernels/base/simd.h"
#include "kernels/ops/rope_append_kernel.h"

namespace diffserve::DS_ISA {
namespace {

constexpr int kMaxHeadDim = kMaxTransform;

void Rotate(const RopeRow& row, const float* x, float* out) {
  const int half = row.kv.format.head_dim / 2;
  if (!row.is_rotated) {
    __builtin_memcpy(out, x, static_cast<size_t>(2 * half) * sizeof(float));
    return;
  }
  if (row.is_interleaved) {
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      out[2 * i] = a * row.cos[i] - b * row.sin[i];
      out[2 * i + 1] = b * row.cos[i] + a * row.sin[i];
    }
    return;
  }
  for (int i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    out[i] = a * row.cos[i] - b * row.sin[i];
    out[i + half] = b * row.cos[i] + a * row.sin[i];
  }
}

// Stores numbers that share a scale as codes of 8 bits with zero at `zero`. offset_of(i) counts
// codes.
template <int kBits, typename OffsetOf>
void AppendRow(const float* values, int count, int zero, uint8_t* page, float* scale,
               OffsetOf offset_of) {
  if constexpr (kBits == 4) {
    alignas(64) float transformed[kMaxTransform];
    __builtin_memcpy(transformed, values, static_cast<size_t>(count) * sizeof(float));
    TransformParts(transformed, count, count);
    *scale = QuantiseFourBits(transformed, count, [&](int i, uint8_t code) {
      const int offset = offset_of(i);
      const int shift = offset % 2 * 4;
      uint8_t& both = page[offset / 2];
      both = static_cast<uint8_t>((both & ~(FourBits::kMaxCode << shift)) | code << shift);
    });
  } else {
    *scale = QuantiseRow(values, count, [&](int i, int8_t code) {
      page[offset_of(i)] = static_cast<uint8_t>(code + zero);
    });
  }
}

// Writes the token's K and V, `k` and `v` of its row, into the pages of every group.
template <typename Codec>
void Append(const RopeRow& row, const float* k, const float* v) {
  const KvFormat format = row.kv.format.As<Codec, KvArrangement::kSlotLanes>();
  const int head_dim = format.head_dim;
  constexpr KvCodec kCodec = Codec::Description();
  float rotated[kMaxHeadDim];
  for (int group = 0; group < format.num_groups; ++group) {
    auto* page = row.kv.PageAs<Codec, KvArrangement::kSlotLanes>(row.page_id, group);
    [[maybe_unused]] float* scales = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(page) +
                                                              format.ScaleBegin());
    // Stage 1: q and k are rotated.
    for (int map = 0; map < format.k_maps; ++map) {
      Rotate(row, k + (map * format.num_groups + group) * head_dim, rotated);
      if constexpr (kCodec.scale_bits > 0) {
        AppendRow<kCodec.k_bits>(rotated, head_dim, Int8Codec::kZero, page,
                                 scales + format.KScale(map, 0, row.slot),
                                 [&](int d) { return format.KOffset(map, d, row.slot); });
      } else {
        for (int d = 0; d < head_dim; ++d)
          page[format.KOffset(map, d, row.slot)] = Codec::Encode(rotated[d]);
      }
    }
    // Stage 2: v goes to the page.
    const float* from = v + group * format.v_dim;
    if constexpr (kCodec.scale_bits > 0) {
      for (int begin = 0; begin < format.v_dim; begin += head_dim) {
        AppendRow<kCodec.v_bits>(from + begin, head_dim, 0, page,
                                 scales + format.VScale(begin, row.slot),
                                 [&](int d) { return format.VOffset(begin + d, row.slot); });
      }
    } else {
      for (int d = 0; d < format.v_dim; ++d)
        page[format.VOffset(d, row.slot)] = Codec::Encode(from[d]);
    }
  }
}

struct RopeInstance {
  DType dtype;
  void (*append)(const RopeRow&, const float* k, const float* v);
};
template <typename Codec>
constexpr RopeInstance kInstanceOf = {Codec::Description().dtype, Append<Codec>};
constexpr RopeInstance kInstances[] = {kInstanceOf<Float32Codec>,    kInstanceOf<BFloat16Codec>,
                                       kInstanceOf<Float16Codec>,    kInstanceOf<Int8Codec>,
                                       kInstanceOf<Int8KInt4VCodec>, kInstanceOf<Int4Codec>};

void RotateAndAppend(const RopeRow& row) {
  const KvFormat& format = row.kv.format;
  for (int head = 0; head < row.num_q_heads; ++head)
    Rotate(row, row.qkv + head * format.head_dim, row.q + head * format.head_dim);
  if (!row.has_kv) return;
  const float* k = row.qkv + row.num_q_heads * format.head_dim;
  const float* v = k + format.num_groups * format.k_maps * format.head_dim;
  for (const RopeInstance& instance : kInstances) {
    if (instance.dtype == format.codec.dtype) return instance.append(row, k, v);
  }
}

}  // namespace
}  // namespace diffserve::DS_ISA

namespace diffserve {

const RopeKernels& RopeKernels::DS_ISA() {
  static constexpr RopeKernels kKernels = {.row = DS_ISA::RotateAndAppend};
  return kKernels;
}

}  // namespace diffserve
