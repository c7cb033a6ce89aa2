// A level's loads of each codec (kv_codec.h), from pages in slot lanes. Only *.isa.cc files include
// this.
#pragma once

#include <cstddef>

#include "kernels/attention/kv_codec.h"
#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

template <typename Codec>
struct KvLoads;

// SlotsOfK: K of kLanes slots, of the dim-th of the k_pack dims that lie side by side from p on.
// ColumnsOfV: kLanes columns of one slot; or the first n of them, and zeros.
template <>
struct KvLoads<Float32Codec> {
  [[gnu::always_inline]] static F32 SlotsOfK(const std::byte* p, int /*dim*/) {
    return Load(reinterpret_cast<const float*>(p));
  }
  [[gnu::always_inline]] static F32 ColumnsOfV(const std::byte* p) {
    return Load(reinterpret_cast<const float*>(p));
  }
  [[gnu::always_inline]] static F32 ColumnsOfV(const std::byte* p, int n) {
    return LoadFirst(reinterpret_cast<const float*>(p), n);
  }
};

template <>
struct KvLoads<BFloat16Codec> {
  [[gnu::always_inline]] static F32 SlotsOfK(const std::byte* p, int dim) {
    const uint16_t* pairs = reinterpret_cast<const uint16_t*>(p);
    return dim == 0 ? EvenBf16(pairs) : OddBf16(pairs);
  }
  [[gnu::always_inline]] static F32 ColumnsOfV(const std::byte* p) {
    return LoadBf16(reinterpret_cast<const uint16_t*>(p));
  }
  [[gnu::always_inline]] static F32 ColumnsOfV(const std::byte* p, int n) {
    return LoadBf16First(reinterpret_cast<const uint16_t*>(p), n);
  }
};

template <>
struct KvLoads<Float16Codec> {
  [[gnu::always_inline]] static F32 SlotsOfK(const std::byte* p, int /*dim*/) {
    return LoadF16(reinterpret_cast<const uint16_t*>(p));
  }
  [[gnu::always_inline]] static F32 ColumnsOfV(const std::byte* p) {
    return LoadF16(reinterpret_cast<const uint16_t*>(p));
  }
  [[gnu::always_inline]] static F32 ColumnsOfV(const std::byte* p, int n) {
    return LoadF16First(reinterpret_cast<const uint16_t*>(p), n);
  }
};

}  // namespace diffserve::DS_ISA
