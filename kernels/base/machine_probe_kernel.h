// SPDX-License-Identifier: Apache-2.0
// Each level's measuring loops. Plain data only: see simd.h.
#pragma once

#include <cstdint>

namespace diffserve {

// Instructions that multiply: float32 multiply-adds (fused but for kPlain), dot products of
// bfloat16 pairs (only kAvx512Bf16 and kNeonBf16), or dot products of int8 quads (one instruction
// from kAvx512Vnni and kNeonDot on, several below).
enum class Arithmetic : uint8_t { kFma, kBFloat16Dot, kInt8Dot };

struct ProbeKernels {
  // Works only in registers; returns the number of operations.
  double (*flops)(Arithmetic arithmetic, int64_t iterations);
  // Reads `count` floats, a multiple of 128, and returns a value that depends on all of them.
  float (*read_all)(const float* p, int64_t count);

  static const ProbeKernels &plain(), &avx2(), &avx512(), &avx512_vnni(), &avx512_bf16(), &neon(),
      &neon_dot(), &neon_bf16();
  [[gnu::weak]] static const ProbeKernels& paired16();
};

}  // namespace diffserve
