// SPDX-License-Identifier: Apache-2.0
// 8 lanes in vectors of the compiler, which cuts them to the registers that there are: what the
// levels that are no AVX share. Included only by simd_plain.h and simd_neon.h.
#pragma once

#include <cstdint>

namespace diffserve::DS_ISA {

inline constexpr int kLanes = 8;

using Floats8 [[gnu::vector_size(32)]] = float;
using Ints8 [[gnu::vector_size(32)]] = int32_t;
using Bits8 [[gnu::vector_size(32)]] = uint32_t;
using Bytes32 [[gnu::vector_size(32)]] = uint8_t;
using Shorts16 [[gnu::vector_size(32)]] = int16_t;
using UnsignedShorts16 [[gnu::vector_size(32)]] = uint16_t;

struct F32 {
  Floats8 v;
};

template <typename Vector>
[[gnu::always_inline]] inline Vector LoadVector(const void* p) {
  Vector v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
template <typename Vector>
[[gnu::always_inline]] inline void StoreVector(void* p, Vector v) {
  __builtin_memcpy(p, &v, sizeof(v));
}
template <typename Vector, typename From>
[[gnu::always_inline]] inline Vector As(From from) {
  return __builtin_bit_cast(Vector, from);
}
template <typename Vector, typename Number>
[[gnu::always_inline]] inline Vector Same8(Number x) {
  return Vector{x, x, x, x, x, x, x, x};
}

[[gnu::always_inline]] inline F32 Zero() { return {Floats8{}}; }
[[gnu::always_inline]] inline F32 Set1(float x) { return {Same8<Floats8>(x)}; }
[[gnu::always_inline]] inline F32 Load(const float* p) { return {LoadVector<Floats8>(p)}; }
[[gnu::always_inline]] inline void Store(float* p, F32 a) { StoreVector(p, a.v); }
[[gnu::always_inline]] inline F32 LoadFirst(const float* p, int n) {
  if (n >= kLanes) return Load(p);
  alignas(32) float padded[kLanes] = {};
  for (int i = 0; i < n; ++i) padded[i] = p[i];
  return Load(padded);
}
[[gnu::always_inline]] inline void StoreFirst(float* p, int n, F32 a) {
  if (n >= kLanes) return Store(p, a);
  alignas(32) float all[kLanes];
  Store(all, a);
  for (int i = 0; i < n; ++i) p[i] = all[i];
}
[[gnu::always_inline]] inline F32 EvenBf16(const uint16_t* p) {
  return {As<Floats8>(LoadVector<Bits8>(p) << 16)};
}
[[gnu::always_inline]] inline F32 OddBf16(const uint16_t* p) {
  return {As<Floats8>(LoadVector<Bits8>(p) & 0xffff0000u)};
}
using UnsignedShorts8 [[gnu::vector_size(16)]] = uint16_t;
[[gnu::always_inline]] inline Bits8 WidenShorts(const uint16_t* p) {
  return __builtin_convertvector(LoadVector<UnsignedShorts8>(p), Bits8);
}
[[gnu::always_inline]] inline F32 LoadBf16(const uint16_t* p) {
  return {As<Floats8>(WidenShorts(p) << 16)};
}
[[gnu::always_inline]] inline F32 Add(F32 a, F32 b) { return {a.v + b.v}; }
[[gnu::always_inline]] inline F32 Sub(F32 a, F32 b) { return {a.v - b.v}; }
[[gnu::always_inline]] inline F32 Mul(F32 a, F32 b) { return {a.v * b.v}; }
[[gnu::always_inline]] inline F32 Div(F32 a, F32 b) { return {a.v / b.v}; }
// Max and Min give b if either operand is a NaN.
[[gnu::always_inline]] inline F32 Max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }
[[gnu::always_inline]] inline F32 Min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
// 2^n from the number 1.5 * 2^23 + 127 + n, for whole n, -126 <= n <= 127.
[[gnu::always_inline]] inline F32 PowerOf2OfShifted(F32 shifted) {
  return {As<Floats8>(As<Bits8>(shifted.v) << 23)};
}
// 2^n for whole n, -126 <= n <= 127.
[[gnu::always_inline]] inline F32 PowerOf2(F32 n) {
  return PowerOf2OfShifted(Add(n, Set1(12582912.0f + 127.0f)));
}
// x < y ? a : b, lane by lane.
[[gnu::always_inline]] inline F32 SelectLess(F32 x, F32 y, F32 a, F32 b) {
  return {x.v < y.v ? a.v : b.v};
}
// Lane i < n ? a : b.
[[gnu::always_inline]] inline F32 SelectFirst(int n, F32 a, F32 b) {
  return {Ints8{0, 1, 2, 3, 4, 5, 6, 7} < Same8<Ints8>(n) ? a.v : b.v};
}
// Joins lanes 4 apart, then 2 apart, then neighbours: avx2's order.
template <typename Vector, typename Join>
[[gnu::always_inline]] inline auto ReduceLanes(Vector v, Join join) {
  const auto of_four = [&](int i) { return join(v[i], v[i + 4]); };
  return join(join(of_four(0), of_four(2)), join(of_four(1), of_four(3)));
}
[[gnu::always_inline]] inline float ReduceMax(F32 a) {
  return ReduceLanes(a.v, [](float x, float y) { return x > y ? x : y; });
}
[[gnu::always_inline]] inline float ReduceAdd(F32 a) {
  return ReduceLanes(a.v, [](float x, float y) { return x + y; });
}

// ---- Integers: 8 of 32 bits, and 8 quads of 8 bits, one per lane. Sums wrap around.
struct I32 {
  Ints8 v;
};
struct Quads {
  Bytes32 v;
};
[[gnu::always_inline]] inline I32 Set1Int(int32_t x) { return {Same8<Ints8>(x)}; }
[[gnu::always_inline]] inline I32 Add(I32 a, I32 b) {
  return {As<Ints8>(As<Bits8>(a.v) + As<Bits8>(b.v))};
}
[[gnu::always_inline]] inline I32 Subtract(I32 a, I32 b) {
  return {As<Ints8>(As<Bits8>(a.v) - As<Bits8>(b.v))};
}
[[gnu::always_inline]] inline I32 Multiply(I32 a, I32 b) {
  return {As<Ints8>(As<Bits8>(a.v) * As<Bits8>(b.v))};
}
[[gnu::always_inline]] inline I32 And(I32 a, I32 b) { return {a.v & b.v}; }
[[gnu::always_inline]] inline F32 AsFloat(I32 a) { return {As<Floats8>(a.v)}; }
[[gnu::always_inline]] inline F32 ToFloat(I32 a) { return {__builtin_convertvector(a.v, Floats8)}; }
[[gnu::always_inline]] inline int32_t ReduceAdd(I32 a) {
  return static_cast<int32_t>(
      ReduceLanes(As<Bits8>(a.v), [](uint32_t x, uint32_t y) { return x + y; }));
}
// REQUIRES: within int8.
using SignedBytes8 [[gnu::vector_size(8)]] = int8_t;
[[gnu::always_inline]] inline void StoreInt8(int8_t* p, I32 a) {
  StoreVector(p, __builtin_convertvector(a.v, SignedBytes8));
}
// REQUIRES: within int16.
using Shorts8 [[gnu::vector_size(16)]] = int16_t;
[[gnu::always_inline]] inline void StoreInt16(int16_t* p, I32 a) {
  StoreVector(p, __builtin_convertvector(a.v, Shorts8));
}
[[gnu::always_inline]] inline I32 LoadInt16(const int16_t* p) {
  return {__builtin_convertvector(LoadVector<Shorts8>(p), Ints8)};
}
[[gnu::always_inline]] inline I32 LoadInts(const float* p) { return {LoadVector<Ints8>(p)}; }
[[gnu::always_inline]] inline void StoreInts(float* p, I32 a) { StoreVector(p, a.v); }
[[gnu::always_inline]] inline Quads LoadQuads(const void* p) { return {LoadVector<Bytes32>(p)}; }
[[gnu::always_inline]] inline Quads Set1Quad(int32_t quad) {
  return {As<Bytes32>(Same8<Ints8>(quad))};
}
[[gnu::always_inline]] inline Quads LowerHalves(Quads a) { return {a.v & uint8_t{15}}; }
[[gnu::always_inline]] inline Quads UpperHalves(Quads a) { return {a.v >> 4}; }
[[gnu::always_inline]] inline Quads FlipTopBits(Quads a) { return {a.v ^ uint8_t{128}}; }

// 8 pairs of 16 bits.
struct I16Pairs {
  Shorts16 v;
};
// Widens 8 pairs of signed 8-bit numbers.
using SignedBytes16 [[gnu::vector_size(16)]] = int8_t;
[[gnu::always_inline]] inline I16Pairs WidenPairs(const void* p) {
  return {__builtin_convertvector(LoadVector<SignedBytes16>(p), Shorts16)};
}
// Widens, from 8 times 8 numbers of 4 bits, the one in each 16 bits that begins at bit kShift.
template <int kShift>
[[gnu::always_inline]] inline I16Pairs FourBitPairs(Quads a) {
  return {As<Shorts16>(As<UnsignedShorts16>(a.v) >> kShift & uint16_t{15})};
}
[[gnu::always_inline]] inline I16Pairs Set1Pair16(int32_t pair) {
  return {As<Shorts16>(Same8<Ints8>(pair))};
}

}  // namespace diffserve::DS_ISA
