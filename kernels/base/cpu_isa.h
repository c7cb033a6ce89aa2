// SPDX-License-Identifier: Apache-2.0
// The instruction-set levels that CPU kernels are compiled for, and the choice among them at run
// time.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

enum class CpuIsa {
  kAvx2,        // AVX2 + FMA + F16C (x86-64-v3)
  kAvx512,      // + AVX-512 F/BW/VL/DQ
  kAvx512Vnni,  // + AVX512_VNNI: integer dot products, with avx512's results
  // + AVX512_BF16 and its dot products. Activations that multiply bfloat16 numbers are rounded to
  // bfloat16 for them.
  kAvx512Bf16,
  // The 16-lane kernels in pairs of AVX2 registers, with avx512's results. For tests; never
  // supported or chosen.
  kPaired16,
};

constexpr std::string_view NameOf(CpuIsa isa) {
  switch (isa) {
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
  }
  return "?";
}

// Levels this processor and operating system support (CPUID and XCR0), lowest first; empty on a
// machine below AVX2.
std::vector<CpuIsa> SupportedCpuIsas();

// `name` is the value of --cpu-isa; "auto" is the best supported level. Error: unknown name, or not
// supported here.
Result<CpuIsa> ChooseCpuIsa(std::string_view name);

}  // namespace diffserve
