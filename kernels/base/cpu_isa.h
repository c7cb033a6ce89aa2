// SPDX-License-Identifier: Apache-2.0
// The instruction-set levels that CPU kernels are compiled for, and the choice among them at run
// time.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

enum class CpuIsa {
  // x86-64:
  kPlain,       // what every processor has (x86-64-v1): slow
  kAvx2,        // AVX2 + FMA + F16C (x86-64-v3)
  kAvx512,      // + AVX-512 F/BW/VL/DQ
  kAvx512Vnni,  // + AVX512_VNNI: integer dot products, with avx512's results
  // + AVX512_BF16 and its dot products. Activations that multiply bfloat16 numbers are rounded to
  // bfloat16 for them.
  kAvx512Bf16,
  // The 16-lane kernels in pairs of AVX2 registers, with avx512's results. For tests; never
  // supported or chosen.
  kPaired16,
  // ARM of 64 bits:
  kNeon,      // what every processor has (ARMv8.0)
  kNeonDot,   // + FEAT_DotProd: integer dot products, with neon's results
  kNeonBf16,  // + FEAT_I8MM and FEAT_BF16; rounds to bfloat16 as kAvx512Bf16 does
};

// The levels that may be chosen in this program, lowest first.
#if defined(__aarch64__)
inline constexpr CpuIsa kCpuIsas[] = {CpuIsa::kNeon, CpuIsa::kNeonDot, CpuIsa::kNeonBf16};
#else
inline constexpr CpuIsa kCpuIsas[] = {CpuIsa::kPlain, CpuIsa::kAvx2, CpuIsa::kAvx512,
                                      CpuIsa::kAvx512Vnni, CpuIsa::kAvx512Bf16};
#endif
// The level of every processor that this program runs on.
inline constexpr CpuIsa kBaseCpuIsa = kCpuIsas[0];

constexpr std::string_view NameOf(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPlain:
      return "plain";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Vnni:
      return "avx512_vnni";
    case CpuIsa::kAvx512Bf16:
      return "avx512_bf16";
    case CpuIsa::kPaired16:
      return "paired16";
    case CpuIsa::kNeon:
      return "neon";
    case CpuIsa::kNeonDot:
      return "neon_dot";
    case CpuIsa::kNeonBf16:
      return "neon_bf16";
  }
  return "?";
}

// Whether activations that multiply bfloat16 numbers are rounded to bfloat16.
constexpr bool RoundsToBFloat16(CpuIsa isa) {
  return isa == CpuIsa::kAvx512Bf16 || isa == CpuIsa::kNeonBf16;
}

// Levels this processor and operating system support (CPUID and XCR0, or the auxiliary vector),
// lowest first. kBaseCpuIsa is always one.
std::vector<CpuIsa> SupportedCpuIsas();

// `name` is the value of --cpu-isa; "auto" is the best supported level. Error: unknown name, or not
// supported here.
Result<CpuIsa> ChooseCpuIsa(std::string_view name);

}  // namespace diffserve
