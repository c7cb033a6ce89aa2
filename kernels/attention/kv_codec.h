// SPDX-License-Identifier: Apache-2.0
// The number formats of K and V. A codec is a type that says how numbers are stored; the host
// compilers, each level (*.isa.cc) and nvcc compile the same source. How a level or a device loads
// a vector is in kv_loads.h and kv_fragments.cuh. Kernels are templates over the codec. A new codec
// is a struct here, its loads there, and a place in the table of each kernel that takes it (on the
// CPU a member of a struct in diff_attention_kernel.h).
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/host_device.h"

namespace diffserve {

// The sizes of a codec as data, from which KvFormat computes offsets.
struct KvCodec {
  DType dtype = DType::kFloat32;
  int k_bits = 32;  // per number of K; divides 32, or is 32
  int v_bits = 32;  // likewise
  int k_pack = 1;  // neighbouring dims of K that are adjacent in memory (KvArrangement::kSlotLanes)
  int v_pack = 1;  // likewise neighbouring slots of V; divides 16
  int scale_group = 0;  // neighbouring dims of a slot that share a scale; KvFormat::Of: head_dim
  int scale_bits = 0;   // per scale: 8, 16 or 32; 0: there are no scales
  float largest = 0;    // a larger finite number is stored as a NaN; 0: no limit

  // 4-bit numbers are stored after a Hadamard transform (hadamard.h) of the dims that share a
  // scale.
  DIFFSERVE_HOST_DEVICE constexpr bool transforms_k() const { return k_bits == 4; }
  DIFFSERVE_HOST_DEVICE constexpr bool transforms_v() const { return v_bits == 4; }
  // A GPU rounds the q that multiplies such K to int8 codes (int8_row.h), any other to bfloat16.
  DIFFSERVE_HOST_DEVICE constexpr bool has_int8_k() const {
    return dtype == DType::kInt8 || dtype == DType::kInt8KInt4V;
  }
};

struct Float32Codec {
  using Element = float;
  DIFFSERVE_HOST_DEVICE static constexpr KvCodec Description() { return {}; }
  DIFFSERVE_HOST_DEVICE static float Decode(float stored) { return stored; }
  DIFFSERVE_HOST_DEVICE static float Encode(float value) { return value; }
};

// A pair of K's dims, or of V's slots, is one 32-bit lane: the operand of a dot product. A shift or
// a mask widens it.
struct BFloat16Codec {
  using Element = uint16_t;
  DIFFSERVE_HOST_DEVICE static constexpr KvCodec Description() {
    return {.dtype = DType::kBFloat16, .k_bits = 16, .v_bits = 16, .k_pack = 2, .v_pack = 2};
  }
  DIFFSERVE_HOST_DEVICE static float Decode(uint16_t stored) { return BFloat16ToFloat(stored); }
  DIFFSERVE_HOST_DEVICE static uint16_t Encode(float value) { return FloatToBFloat16(value); }
};

// A finite number that float16 cannot hold is stored as a NaN. The NaN reaches every token that
// attends to it and so ends the request. An infinity could get lost: as a score of -infinity it has
// weight 0.
struct Float16Codec {
  using Element = uint16_t;
  DIFFSERVE_HOST_DEVICE static constexpr KvCodec Description() {
    return {.dtype = DType::kFloat16, .k_bits = 16, .v_bits = 16, .largest = kFloat16Max};
  }
  DIFFSERVE_HOST_DEVICE static float Decode(uint16_t stored) { return Float16ToFloat(stored); }
  DIFFSERVE_HOST_DEVICE static uint16_t Encode(float value) {
    const uint16_t stored = FloatToFloat16(value);
    const bool overflows = (stored & 0x7fff) == 0x7c00 && value - value == 0.0f;
    return overflows ? uint16_t{0x7e00} : stored;
  }
};

// A number is (code - kZero) * scale, with codes of magnitude 127 at most. There is one float32
// scale per slot and head_dim dims: for K1, for K2, and for each part of V of that width. A token's
// numbers are quantised when they are written; every reader, its own chunk included, reads the
// quantised ones. A number that is not finite makes the scale a NaN, which reaches every token that
// attends to the slot.
struct Int8Codec {
  using Element = uint8_t;
  // For K, which is unsigned in dot products; V's codes are signed.
  static constexpr int kZero = 128;
  static constexpr int kMaxCode = 127;
  DIFFSERVE_HOST_DEVICE static constexpr KvCodec Description() {
    return {.dtype = DType::kInt8,
            .k_bits = 8,
            .v_bits = 8,
            .k_pack = 4,
            .v_pack = 2,
            .scale_bits = 32};
  }
};

// Like Int8Codec, with E4M3 numbers (dtype.h) as codes: a number is code * scale, and the largest
// number under a scale is 448 times it. No code is a NaN.
struct Fp8E4M3Codec {
  using Element = uint8_t;
  DIFFSERVE_HOST_DEVICE static constexpr KvCodec Description() {
    KvCodec codec = Int8Codec::Description();
    codec.dtype = DType::kFp8E4M3;
    return codec;
  }
};

// Four bits: a number is (code - zero / kZeroUnits) * step, with codes 0 to 15. One float32 in the
// place of a scale holds both; zero is in its lowest kZeroBits bits. The range that covers the
// minimum, the maximum and 0 is 15 steps.
struct FourBits {
  static constexpr int kMaxCode = 15;
  static constexpr int kZeroUnits = 16;
  static constexpr int kZeroBits = 8;
  static constexpr uint32_t kZeroMask = (1u << kZeroBits) - 1;

  DIFFSERVE_HOST_DEVICE static int ZeroOf(float scale) {
    return static_cast<int>(__builtin_bit_cast(uint32_t, scale) & kZeroMask);
  }
  DIFFSERVE_HOST_DEVICE static float StepOf(float scale) {
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, scale) & ~kZeroMask);
  }
  DIFFSERVE_HOST_DEVICE static float ScaleOf(float step, int zero) {
    return __builtin_bit_cast(
        float, (__builtin_bit_cast(uint32_t, step) & ~kZeroMask) | static_cast<uint32_t>(zero));
  }
};

// K as Int8Codec, V in four bits.
struct Int8KInt4VCodec {
  using Element = uint8_t;
  DIFFSERVE_HOST_DEVICE static constexpr KvCodec Description() {
    return {.dtype = DType::kInt8KInt4V,
            .k_bits = 8,
            .v_bits = 4,
            .k_pack = 4,
            .v_pack = 8,
            .scale_bits = 32};
  }
};

struct Int4Codec {
  using Element = uint8_t;
  DIFFSERVE_HOST_DEVICE static constexpr KvCodec Description() {
    return {.dtype = DType::kInt4,
            .k_bits = 4,
            .v_bits = 4,
            .k_pack = 8,
            .v_pack = 8,
            .scale_bits = 32};
  }
};

}  // namespace diffserve
