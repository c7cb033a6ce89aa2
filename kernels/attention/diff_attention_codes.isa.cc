// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/diff_attention_worker.h"

namespace diffserve {

const CodeAttention& CodeAttention::DS_ISA() {
  static constexpr CodeAttention kKernels = {.int8 = DS_ISA::RunTask<Int8Codec>,
                                             .int8k_int4v = DS_ISA::RunTask<Int8KInt4VCodec>,
                                             .int4 = DS_ISA::RunTask<Int4Codec>};
  return kKernels;
}

}  // namespace diffserve
