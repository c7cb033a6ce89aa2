// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/kernel_table.h"

#include "kernels/base/check.h"
#include "kernels/base/cpu_isa.h"

namespace diffserve {

namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}
namespace avx512_vnni {
extern const KernelTable kKernels;
}
namespace avx512_bf16 {
extern const KernelTable kKernels;
}
namespace paired16 {
[[gnu::weak]] extern const KernelTable kKernels;  // absent from programs that serve
}

const KernelTable& KernelsFor(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAvx2:
      return avx2::kKernels;
    case CpuIsa::kAvx512:
      return avx512::kKernels;
    case CpuIsa::kAvx512Vnni:
      return avx512_vnni::kKernels;
    case CpuIsa::kAvx512Bf16:
      return avx512_bf16::kKernels;
    case CpuIsa::kPaired16:
      DS_CHECK(&paired16::kKernels != nullptr, "this program is linked without paired16");
      return paired16::kKernels;
  }
  DS_CHECK(false, "unknown CPU level");
}

}  // namespace diffserve
