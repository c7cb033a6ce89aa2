// SPDX-License-Identifier: Apache-2.0
// Runs steps of the usual sizes before a model serves, so that a first request does not wait for
// what a device makes at first use: kernels are loaded, cuBLASLt chooses its own, and decodes are
// recorded as graphs.
#pragma once

#include "models/model.h"

namespace diffserve::cuda {

// Both write to pages and states of `kv`, and leave nothing else. `limits` are the model's,
// complete. Errors are the device's.

// Prompts of the most tokens that a step may have, of half as many, and so on.
Status RunUsualPrompts(Model& model, const StepLimits& limits, KvCache& kv);
// Decodes of each size that has a graph, in contexts of one split of attention and of several.
Status RunUsualDecodes(Model& model, const StepLimits& limits, KvCache& kv);

}  // namespace diffserve::cuda
