// SPDX-License-Identifier: Apache-2.0
// Whether a request could ever be served by an engine of these sizes.
#pragma once

#include "engine/contract/options.h"
#include "engine/contract/request.h"
#include "kernels/base/status.h"

namespace diffserve {

// An error names the field, its value and the limit. Thread safety: reads its arguments only.
Status CheckFits(const EngineOptions& options, const Request& request);

}  // namespace diffserve
