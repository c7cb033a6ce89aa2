// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/cpu_isa.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <string>

#include "kernels/base/refusal.h"

namespace diffserve {

#if defined(__aarch64__)

std::vector<CpuIsa> SupportedCpuIsas() {
  std::vector<CpuIsa> levels = {kBaseCpuIsa};
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return levels;
  levels.push_back(CpuIsa::kNeonDot);
  constexpr unsigned long kBf16 = HWCAP2_I8MM | HWCAP2_BF16;
  if ((getauxval(AT_HWCAP2) & kBf16) == kBf16) levels.push_back(CpuIsa::kNeonBf16);
  return levels;
}

#else

std::vector<CpuIsa> SupportedCpuIsas() {
  // The builtin checks XCR0 too: a level counts only if the operating system saves its registers.
  __builtin_cpu_init();
  std::vector<CpuIsa> levels = {kBaseCpuIsa};
  if (!__builtin_cpu_supports("x86-64-v3")) return levels;
  levels.push_back(CpuIsa::kAvx2);
  if (!__builtin_cpu_supports("x86-64-v4")) return levels;
  levels.push_back(CpuIsa::kAvx512);
  if (!__builtin_cpu_supports("avx512vnni")) return levels;
  levels.push_back(CpuIsa::kAvx512Vnni);
  if (__builtin_cpu_supports("avx512bf16")) levels.push_back(CpuIsa::kAvx512Bf16);
  return levels;
}

#endif

Result<CpuIsa> ChooseCpuIsa(std::string_view name) {
  const std::vector<CpuIsa> supported = SupportedCpuIsas();
  if (name == "auto") return supported.back();
  std::string supported_names = "auto";
  for (CpuIsa level : supported) {
    if (name == NameOf(level)) return level;
    supported_names += ", " + std::string(NameOf(level));
  }
  return NotOneOf("cpu-isa", name, supported_names);
}

}  // namespace diffserve
