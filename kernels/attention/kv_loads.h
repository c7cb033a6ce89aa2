// SPDX-License-Identifier: Apache-2.0
// What a level makes of each codec (kv_codec.h) on pages in slot lanes: loads of K and V, and their
// products with q and with weights. Only *.isa.cc files include this.
#pragma once

#include <cstddef>

#include "kernels/attention/kv_codec.h"
#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

// Bytes of `numbers` numbers of K, and of V.
template <typename Codec>
constexpr int64_t KBytes(int64_t numbers) {
  return numbers * Codec::Description().k_bits / 8;
}
template <typename Codec>
constexpr int64_t VBytes(int64_t numbers) {
  return numbers * Codec::Description().v_bits / 8;
}

// Arithmetic in float32: a product takes one number of each.
struct Float32Products {
  static constexpr int kNumbers = 1;
  using Vector = F32;
  using Operand = float;  // q or a weight, in memory
  [[gnu::always_inline]] static F32 Broadcast(Operand operand) { return Set1(operand); }
  [[gnu::always_inline]] static F32 Add(F32 acc, F32 a, F32 b) { return Fma(a, b, acc); }
  // One dim of q.
  [[gnu::always_inline]] static Operand OperandOf(const float* q) { return *q; }
  // kLanes weights.
  [[gnu::always_inline]] static void StoreWeights(Operand* to, F32 weights) { Store(to, weights); }
};

// SlotsOfK: K of kLanes slots, dim number `dim` of the k_pack dims that are adjacent from p on.
// ColumnsOfV: kLanes columns of slot number `slot` of the v_pack adjacent slots. LastColumnsOfV: n
// columns and zeros. Where a product takes two numbers they are pairs, and dim and slot are 0.
template <typename Codec>
struct KvLoads;

template <>
struct KvLoads<Float32Codec> : Float32Products {
  [[gnu::always_inline]] static F32 SlotsOfK(const std::byte* p, int /*dim*/) {
    return Load(reinterpret_cast<const float*>(p));
  }
  [[gnu::always_inline]] static F32 ColumnsOfV(const std::byte* p, int /*slot*/) {
    return Load(reinterpret_cast<const float*>(p));
  }
  [[gnu::always_inline]] static F32 LastColumnsOfV(const std::byte* p, int /*slot*/, int n) {
    return LoadFirst(reinterpret_cast<const float*>(p), n);
  }
};

template <>
struct KvLoads<Float16Codec> : Float32Products {
  [[gnu::always_inline]] static F32 SlotsOfK(const std::byte* p, int /*dim*/) {
    return LoadF16(reinterpret_cast<const uint16_t*>(p));
  }
  [[gnu::always_inline]] static F32 ColumnsOfV(const std::byte* p, int /*slot*/) {
    return LoadF16(reinterpret_cast<const uint16_t*>(p));
  }
  [[gnu::always_inline]] static F32 LastColumnsOfV(const std::byte* p, int /*slot*/, int n) {
    return LoadF16First(reinterpret_cast<const uint16_t*>(p), n);
  }
};

// n < kLanes pairs, and zeros.
struct LastBf16Pairs {
  alignas(64) uint16_t pairs[2 * kLanes] = {};
  [[gnu::always_inline]] LastBf16Pairs(const std::byte* p, int n) {
    for (int i = 0; i < 2 * n; ++i) pairs[i] = reinterpret_cast<const uint16_t*>(p)[i];
  }
};

// One slot of a pair, the first (0) or the second (1); the other slot does not enter.
struct Bf16LoneSlot {
  // n <= kLanes columns.
  [[gnu::always_inline]] static F32 LoneSlotOfV(const std::byte* p, int in_pair, int n) {
    return n == kLanes ? Lone(reinterpret_cast<const uint16_t*>(p), in_pair)
                       : Lone(LastBf16Pairs(p, n).pairs, in_pair);
  }
  [[gnu::always_inline]] static float LoneWeight(uint32_t weights, int in_pair) {
    return __builtin_bit_cast(float, in_pair == 0 ? weights << 16 : weights & 0xffff0000u);
  }
  [[gnu::always_inline]] static float LoneWeight(float weight, int) { return weight; }

 private:
  [[gnu::always_inline]] static F32 Lone(const uint16_t* pairs, int in_pair) {
    return in_pair == 0 ? EvenBf16(pairs) : OddBf16(pairs);
  }
};

#if defined(DS_HAS_BF16_DOT)

// Arithmetic of the level's dot products: q and weights are rounded to bfloat16.
template <>
struct KvLoads<BFloat16Codec> : Bf16LoneSlot {
  static constexpr int kNumbers = 2;
  using Vector = Bf16Pairs;
  using Operand = uint32_t;
  [[gnu::always_inline]] static Bf16Pairs Broadcast(Operand operand) { return Set1Pair(operand); }
  [[gnu::always_inline]] static F32 Add(F32 acc, Bf16Pairs a, Bf16Pairs b) {
    return DotPairs(acc, a, b);
  }
  // Two dims of q.
  [[gnu::always_inline]] static Operand OperandOf(const float* q) {
    return FloatToBFloat16(q[0]) | static_cast<uint32_t>(FloatToBFloat16(q[1])) << 16;
  }
  [[gnu::always_inline]] static void StoreWeights(Operand* to, F32 weights) {
    StoreBf16(reinterpret_cast<uint16_t*>(to), weights);
  }
  [[gnu::always_inline]] static Bf16Pairs SlotsOfK(const std::byte* p, int /*dim*/) {
    return LoadPairs(reinterpret_cast<const uint16_t*>(p));
  }
  [[gnu::always_inline]] static Bf16Pairs ColumnsOfV(const std::byte* p, int /*slot*/) {
    return LoadPairs(reinterpret_cast<const uint16_t*>(p));
  }
  [[gnu::always_inline]] static Bf16Pairs LastColumnsOfV(const std::byte* p, int /*slot*/, int n) {
    return LoadPairs(LastBf16Pairs(p, n).pairs);
  }
};

#else

template <>
struct KvLoads<BFloat16Codec> : Float32Products, Bf16LoneSlot {
  [[gnu::always_inline]] static F32 SlotsOfK(const std::byte* p, int dim) {
    const uint16_t* pairs = reinterpret_cast<const uint16_t*>(p);
    return dim == 0 ? EvenBf16(pairs) : OddBf16(pairs);
  }
  [[gnu::always_inline]] static F32 ColumnsOfV(const std::byte* p, int slot) {
    return SlotsOfK(p, slot);
  }
  [[gnu::always_inline]] static F32 LastColumnsOfV(const std::byte* p, int slot, int n) {
    const LastBf16Pairs last(p, n);
    return slot == 0 ? EvenBf16(last.pairs) : OddBf16(last.pairs);
  }
};

#endif

// Four codes of q, or two weights of 16 bits.
struct CodeOperands {
  static constexpr int kNumbers = 2;  // per operand of a weight
  using Operand = int32_t;
};
template <>
struct KvLoads<Int8Codec> : CodeOperands {};
template <>
struct KvLoads<Int8KInt4VCodec> : CodeOperands {};
template <>
struct KvLoads<Int4Codec> : CodeOperands {};

}  // namespace diffserve::DS_ISA
