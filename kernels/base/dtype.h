// SPDX-License-Identifier: Apache-2.0
// Element types of stored tensors and their scalar conversions. Arithmetic on the CPU is float32
// (double in the reference).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/base/host_device.h"

namespace diffserve {

// From kInt8 on: codes in KV pages, whose scales follow them (kv_codec.h). No tensor has these.
enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16, kInt8, kInt8KInt4V, kInt4, kFp8E4M3 };
inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16,   DType::kFloat16,
                                    DType::kInt8,    DType::kInt8KInt4V, DType::kInt4,
                                    DType::kFp8E4M3};

// Bytes per element of a tensor.
constexpr size_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

constexpr std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kInt8:
      return "int8";
    case DType::kInt8KInt4V:
      return "int8k_int4v";
    case DType::kInt4:
      return "int4";
    case DType::kFp8E4M3:
      return "fp8_e4m3";
  }
  return "?";
}

// A bfloat16 in memory: its bits, the upper half of a float32.
using BFloat16 = uint16_t;

DIFFSERVE_HOST_DEVICE float BFloat16ToFloat(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; a NaN stays a (quiet) NaN.
DIFFSERVE_HOST_DEVICE uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE binary16, subnormals and infinities included.
DIFFSERVE_HOST_DEVICE float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return __builtin_bit_cast(float, sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // The bits with a float32's exponent position, times 2^112: exact for subnormals too.
  const float scaled = __builtin_bit_cast(float, magnitude << 13) * 0x1p112f;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, scaled));
}

// The largest float16, and the smallest magnitude that rounds beyond it.
inline constexpr float kFloat16Max = 65504.0f;
inline constexpr float kFloat16Overflow = 65520.0f;

// Rounds to nearest even; from kFloat16Overflow on to infinity; a NaN stays a (quiet) NaN.
DIFFSERVE_HOST_DEVICE uint16_t FloatToFloat16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal: its last bit is worth 2^-24, as that of 0.5f to 1
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

// 8 bits with 4 of exponent and 3 of mantissa (OCP E4M3): no infinities, and one NaN per sign, with
// all bits set.
inline constexpr float kFp8E4M3Max = 448.0f;

DIFFSERVE_HOST_DEVICE float Fp8E4M3ToFloat(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return __builtin_bit_cast(float, sign | 0x7fc00000u);
  // With exponent and mantissa in the place of a float32's, the value is 2^-120 times the number,
  // subnormal or not.
  const float scaled = __builtin_bit_cast(float, magnitude << 20) * 0x1p120f;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, scaled));
}

// Rounds to nearest even; a larger number becomes the largest, a NaN stays one.
DIFFSERVE_HOST_DEVICE uint8_t FloatToFp8E4M3(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // 448
  if (magnitude < 0x3c800000u) {  // subnormal: its last bit is worth 2^-9, as that of 2^14
    const float shifted = __builtin_bit_cast(float, magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - (120u << 23);
  return static_cast<uint8_t>(sign | rounded >> 20);
}

}  // namespace diffserve
