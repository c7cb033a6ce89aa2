// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/mamba/gated_memory.h"

namespace diffserve {

void GatedMemoryRef(const GatedMemoryArgs<float>& args) {
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    for (int64_t i = 0; i < args.width; ++i) {
      const double z = args.gate[token * args.gate_stride + i];
      const double memory = args.memory[token * args.width + i];
      args.out[token * args.width + i] = static_cast<float>(z / (1.0 + std::exp(-z)) * memory);
    }
  }
}

}  // namespace diffserve
