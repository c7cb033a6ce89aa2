// SPDX-License-Identifier: Apache-2.0
// The kernels of one OP.isa.cc file are a struct of function pointers with one instance per level
// that the file is compiled for, as RopeKernels in rope_append_kernel.h. The struct is their only
// declaration. OP.isa.cc defines the functions and, as `DS_ISA()`, its level's instance. Host code
// fills a plain argument struct and calls the level's functions.
#pragma once

#include "kernels/base/cpu_isa.h"
#include "kernels/process/check.h"

namespace diffserve {

// The level's instance, or that of the highest level below it that has one. REQUIRES: a level of
// the processors that the program is built for.
template <typename Kernels>
const Kernels& KernelsFor(CpuIsa isa) {
  switch (isa) {
#if defined(__aarch64__)
    case CpuIsa::kNeonBf16:
      if constexpr (requires { Kernels::neon_bf16(); }) return Kernels::neon_bf16();
      [[fallthrough]];
    case CpuIsa::kNeonDot:
      if constexpr (requires { Kernels::neon_dot(); }) return Kernels::neon_dot();
      [[fallthrough]];
    case CpuIsa::kNeon:
      return Kernels::neon();
#else
    case CpuIsa::kAvx512Bf16:
      if constexpr (requires { Kernels::avx512_bf16(); }) return Kernels::avx512_bf16();
      [[fallthrough]];
    case CpuIsa::kAvx512Vnni:
      if constexpr (requires { Kernels::avx512_vnni(); }) return Kernels::avx512_vnni();
      [[fallthrough]];
    case CpuIsa::kAvx512:
      return Kernels::avx512();
    case CpuIsa::kAvx2:
      return Kernels::avx2();
    case CpuIsa::kPlain:
      return Kernels::plain();
    case CpuIsa::kPaired16:  // weak: absent from programs that serve
      DS_CHECK(&Kernels::paired16 != nullptr, "this program is linked without paired16");
      return Kernels::paired16();
#endif
    default:
      break;
  }
  DS_CHECK(false, "a level of another processor");
}

}  // namespace diffserve
