// SPDX-License-Identifier: Apache-2.0
// Runs steps of the usual sizes before a model serves, so that a first request does not wait for
// what a device makes at first use: kernels are loaded, cuBLASLt chooses its own, and decodes are
// recorded as graphs.
#pragma once

#include "models/model.h"

namespace diffserve::cuda {

// Prompts of the most tokens that a step may have, of half as many and so on, and decodes of each
// size that has a graph, in short contexts and long ones. They write to all pages and states of
// `kv`, and leave nothing else. `limits` are the model's, complete. Errors are the device's.
Status WarmUp(Model& model, const StepLimits& limits, KvCache& kv);

}  // namespace diffserve::cuda
