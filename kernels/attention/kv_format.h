// SPDX-License-Identifier: Apache-2.0
// KvFormat: the layout of KV pages, for the CPU and the GPU: shape, codec (kv_codec.h),
// arrangement, and position of the scales. It is the only source for the size of a page and for
// offsets in it.
//
// A page id names, in each layer and each KV group, one page of `page_size` consecutive slots (a
// slot holds one token). The page of one layer and group is contiguous:
//
//   K1 | K2 (if k_maps == 2) | V | scales of K1 | of K2 | of V (if the codec has scales)
//
//   kSlotLanes, on the CPU: K is [head_dim / k_pack][page_size][k_pack], so that neighbouring slots
//   are neighbouring SIMD lanes; V is [page_size / v_pack][v_dim][v_pack].
//   kImage, on a GPU: K and V are matrices [page_size][head_dim] and [page_size][v_dim] in swizzled
//   tiles, as shared memory holds them (kv_image.h). The 4-bit numbers under one scale are stored
//   in runs of 32; the last run may have 16. Dims i and i + 16 of a run share a byte.
//
// Scales are in slot lanes in both: K's [head_dim / scale_group][page_size], V's [v_dim /
// scale_group][page_size]. K is rotated before it is stored, and 4-bit numbers are
// Hadamard-transformed. Slots to which no token was written hold arbitrary bits (NaNs included): a
// kernel must not let them into a result, not even multiplied by zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/diff_spec.h"
#include "kernels/attention/kv_codec.h"
#include "kernels/attention/kv_image.h"

namespace diffserve {

enum class KvArrangement : uint8_t { kSlotLanes, kImage };

struct KvFormat {
  int page_size = 16;  // slots; a multiple of 16
  int num_groups = 0;
  int k_maps = 1;
  int head_dim = 0;  // a multiple of 2, k_pack and scale_group; in an image, of a chunk or of 16
  int v_dim = 0;     // a multiple of scale_group; in an image, of a chunk or of 16
  KvCodec codec;
  KvArrangement arrangement = KvArrangement::kSlotLanes;

  static KvFormat Of(const DiffSpec& spec, int page_size, DType dtype,
                     KvArrangement arrangement = KvArrangement::kSlotLanes);

  // The same, with codec and arrangement known to the compiler.
  template <typename Codec, KvArrangement kArrangement>
  DIFFSERVE_HOST_DEVICE constexpr KvFormat As() const {
    KvCodec known = Codec::Description();
    known.scale_group = codec.scale_group;
    return {page_size, num_groups, k_maps, head_dim, v_dim, known, kArrangement};
  }

  // ---- Indices of numbers in a page, as if all had K's width, or V's.
  DIFFSERVE_HOST_DEVICE constexpr int KMapBegin(int map) const {
    return map * page_size * KColumns();
  }
  DIFFSERVE_HOST_DEVICE constexpr int VBegin() const {
    return KMapBegin(k_maps) * codec.k_bits / codec.v_bits;
  }
  DIFFSERVE_HOST_DEVICE constexpr int PageElements() const { return page_size * columns(); }
  // The number of columns per row of one map's K, or of V.
  DIFFSERVE_HOST_DEVICE constexpr int KColumns() const {
    return ImageColumn(head_dim, codec.k_bits);
  }
  DIFFSERVE_HOST_DEVICE constexpr int VColumns() const { return ImageColumn(v_dim, codec.v_bits); }
  DIFFSERVE_HOST_DEVICE constexpr int KOffset(int map, int dim, int slot) const {
    if (arrangement == KvArrangement::kImage) {
      return KMapBegin(map) + KvImageOffset(page_size, KColumns(), slot,
                                            ImageColumn(dim, codec.k_bits), 128 / codec.k_bits);
    }
    const int pack = codec.k_pack;
    // Among eight 4-bit numbers, the first four are the lower halves of bytes.
    const int in_pack = codec.k_bits == 4 ? dim % 4 * 2 + dim % 8 / 4 : dim % pack;
    return KMapBegin(map) + (dim / pack * page_size + slot) * pack + in_pack;
  }
  DIFFSERVE_HOST_DEVICE constexpr int VOffset(int dim, int slot) const {
    if (arrangement == KvArrangement::kImage) {
      return VBegin() + KvImageOffset(page_size, VColumns(), slot, ImageColumn(dim, codec.v_bits),
                                      128 / codec.v_bits);
    }
    const int pack = codec.v_pack;
    // Among eight 4-bit slots, the even ones are the lower half of 32 bits.
    const int in_pack = codec.v_bits == 4 ? slot % 2 * 4 + slot % 8 / 2 : slot % pack;
    return VBegin() + (slot / pack * v_dim + dim) * pack + in_pack;
  }

  // ---- Indices of scales in a page. REQUIRES: the codec has scales.
  DIFFSERVE_HOST_DEVICE constexpr int KScale(int map, int dim, int slot) const {
    return map * page_size * (head_dim / codec.scale_group) + dim / codec.scale_group * page_size +
           slot;
  }
  DIFFSERVE_HOST_DEVICE constexpr int VScale(int dim, int slot) const {
    return k_maps * page_size * (head_dim / codec.scale_group) +
           dim / codec.scale_group * page_size + slot;
  }

  // ---- Bytes.
  DIFFSERVE_HOST_DEVICE constexpr int64_t ScaleBegin() const {
    return int64_t{VBegin() + page_size * VColumns()} * codec.v_bits / 8;
  }
  // Bytes of the page of one layer and group.
  DIFFSERVE_HOST_DEVICE constexpr int64_t PageBytes() const {
    const int num_scales = codec.scale_bits == 0 ? 0 : page_size * (columns() / codec.scale_group);
    return ScaleBegin() + int64_t{num_scales} * codec.scale_bits / 8;
  }

 private:
  DIFFSERVE_HOST_DEVICE constexpr int columns() const { return k_maps * head_dim + v_dim; }
  // The position of a dim in a row. For v_dim or head_dim, the end of the row.
  DIFFSERVE_HOST_DEVICE constexpr int ImageColumn(int dim, int bits) const {
    if (arrangement != KvArrangement::kImage || bits != 4) return dim;
    const int group = codec.scale_group;
    const int in_group = dim % group;
    return dim / group * ((group + 31) / 32 * 32) + in_group / 32 * 32 + in_group % 16 * 2 +
           in_group % 32 / 16;
  }
};

// The pages of one layer: page `id` of group g is page number id * num_groups + g after `base`.
struct PagedKv {
  std::byte* base = nullptr;
  KvFormat format;

  DIFFSERVE_HOST_DEVICE std::byte* Page(int32_t id, int group) const {
    return base + (int64_t{id} * format.num_groups + group) * format.PageBytes();
  }
  template <typename Codec, KvArrangement kArrangement>
  DIFFSERVE_HOST_DEVICE typename Codec::Element* PageAs(int32_t id, int group) const {
    const PagedKv known = {base, format.As<Codec, kArrangement>()};
    return reinterpret_cast<typename Codec::Element*>(known.Page(id, group));
  }
};

// Whether pages of this type hold codes with scales.
bool HasCodes(DType dtype);

// Numbers of a page as they are stored: codes times their scale.
float KValue(const KvFormat& format, const std::byte* page, int map, int dim, int slot);
float VValue(const KvFormat& format, const std::byte* page, int dim, int slot);

// The rows of a page, for the reference and for tests. They apply the codec's transform when they
// write and undo it when they read. `k` is one map's row of a slot, [head_dim]; `v` is a slot's
// row, [v_dim].
std::vector<double> KRow(const KvFormat& format, const std::byte* page, int map, int slot);
std::vector<double> VRow(const KvFormat& format, const std::byte* page, int slot);
void SetK(const KvFormat& format, std::byte* page, int map, int slot, std::span<const float> k);
void SetV(const KvFormat& format, std::byte* page, int slot, std::span<const float> v);

}  // namespace diffserve
