// SPDX-License-Identifier: Apache-2.0
// The Model on a CUDA device: cuts a batch into passes of the decoder, copies each to the device,
// runs pure decodes as graphs, and copies the draws back. The next step may be launched before the
// host has seen this one's draws; it finds them in device memory.
#pragma once

#include <memory>

#include "models/decoder_cuda.h"
#include "models/model.h"
#include "models/weights.h"

namespace diffserve::cuda {

// Allocates the memory for transfers between host and device. The decoder's workspace is for steps
// within `limits`.
Result<std::unique_ptr<Model>> MakeStepRunner(std::unique_ptr<Stream> stream, Decoder::Parts parts,
                                              const StepLimits& limits, const WeightSizes& sizes);

}  // namespace diffserve::cuda
