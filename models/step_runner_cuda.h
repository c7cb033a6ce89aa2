// SPDX-License-Identifier: Apache-2.0
// The Model on a CUDA device: cuts a batch into passes of the decoder, copies each to the device,
// runs pure decodes as graphs, and copies the draws back. The next step may be launched before the
// host has seen this one's draws; it finds them in device memory.
#pragma once

#include <memory>
#include <string>

#include "models/decoder_cuda.h"
#include "models/model.h"
#include "models/weights.h"

namespace diffserve::cuda {

struct StepRunnerOptions {
  std::string name;   // of the device, in the error that says that it is lost
  StepLimits limits;  // the decoder's workspace is for steps within them
  WeightSizes sizes;
};

// Allocates the memory for transfers between host and device.
Result<std::unique_ptr<Model>> MakeStepRunner(std::unique_ptr<Stream> stream, Decoder::Parts parts,
                                              StepRunnerOptions options);

}  // namespace diffserve::cuda
