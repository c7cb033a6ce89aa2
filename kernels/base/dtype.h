// Element types of stored tensors and their scalar conversions. Arithmetic on the CPU is float32
// (double in the reference).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace diffserve {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16 };

constexpr size_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

constexpr std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
  }
  return "?";
}

// bfloat16 is the upper half of a float32.
inline float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; a NaN stays a (quiet) NaN.
inline uint16_t FloatToBFloat16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>(bits >> 16);
}

// IEEE binary16, subnormals and infinities included.
float Float16ToFloat(uint16_t bits);

}  // namespace diffserve
