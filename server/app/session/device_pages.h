// SPDX-License-Identifier: Apache-2.0
// The memory of a GPU that can hold KV pages, counted when everything else has its memory.
#pragma once

#include "server/app/session/model_session.h"

namespace diffserve {

// Free bytes of the device of a loaded model. Before they are counted, a server's model runs its
// steps on a few pages, which are then released: so graphs and kernels have their memory.
// REQUIRES: plan.on_gpu().
Result<double> FreeForPages(Model& model, const SessionPlan& plan);

}  // namespace diffserve
