// SPDX-License-Identifier: Apache-2.0
// The prefix cache of a GPU in host memory: --kv-cache-host-memory.
#pragma once

#include <memory>

#include "engine/contract/page_tier.h"
#include "server/app/options.h"
#include "server/app/session/model_session.h"

namespace diffserve {

// nullptr without --kv-cache-host-memory. Takes the memory. REQUIRES: the session's executor is not
// made yet. Errors: kInvalidArgument that names the flag; kResourceExhausted.
Result<std::unique_ptr<PageTier>> OpenKvHost(const ServeOptions& serve, ModelSession& session);

}  // namespace diffserve
