// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/diff_attention_worker.h"

namespace diffserve {

const BFloat16Attention& BFloat16Attention::DS_ISA() {
  static constexpr BFloat16Attention kKernels = {.bfloat16 = DS_ISA::RunTask<BFloat16Codec>};
  return kKernels;
}

}  // namespace diffserve
