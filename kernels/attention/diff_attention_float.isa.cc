// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/diff_attention_worker.h"

namespace diffserve {

const FloatAttention& FloatAttention::DS_ISA() {
  static constexpr FloatAttention kKernels = {.float32 = DS_ISA::RunTask<Float32Codec>,
                                              .float16 = DS_ISA::RunTask<Float16Codec>};
  return kKernels;
}

}  // namespace diffserve
