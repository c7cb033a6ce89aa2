// SPDX-License-Identifier: Apache-2.0
// Each level's kernels of a Mamba layer. Plain data only: see simd.h.
#pragma once

#include "kernels/mamba/causal_conv.h"
#include "kernels/mamba/gated_memory.h"
#include "kernels/mamba/selective_scan.h"

namespace diffserve {

// For channels [begin, end), whose states no other worker touches.
struct CausalConvKernels {
  void (*run)(const CausalConvArgs<float>& args, int begin, int end);

  static const CausalConvKernels &plain(), &avx2(), &avx512(), &neon();
  [[gnu::weak]] static const CausalConvKernels& paired16();
};

struct SelectiveScanKernels {
  void (*run)(const SelectiveScanArgs<float>& args, int begin, int end);

  static const SelectiveScanKernels &plain(), &avx2(), &avx512(), &neon();
  [[gnu::weak]] static const SelectiveScanKernels& paired16();
};

// For tokens [begin, end).
struct GatedMemoryKernels {
  void (*run)(const GatedMemoryArgs<float>& args, int begin, int end);

  static const GatedMemoryKernels &plain(), &avx2(), &avx512(), &neon();
  [[gnu::weak]] static const GatedMemoryKernels& paired16();
};

}  // namespace diffserve
