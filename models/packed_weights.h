// SPDX-License-Identifier: Apache-2.0
// Reads a packed model directory (packed_format.h): bytes of files go straight into the memory that
// the kernels read. Each of the pool's workers reads the part that it will read in a step. Nothing
// is converted, and nothing is in memory twice.
#pragma once

#include "kernels/ops/weight_packer.h"
#include "models/checkpoint.h"
#include "models/decoder.h"
#include "models/weights.h"

namespace diffserve {

struct PackedLoadOptions {
  CpuIsa isa = CpuIsa::kAvx2;
  WeightFormat format = WeightFormat::kFloat32;  // for what is not quantised
};

// REQUIRES: config.packed is set, for the level's panels; CheckWeights has accepted the checkpoint.
Result<cpu::Weights> LoadPackedWeights(const ModelConfig& config, Checkpoint& checkpoint,
                                       const PackedLoadOptions& options, ThreadPool& pool);

}  // namespace diffserve
