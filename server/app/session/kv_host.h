// SPDX-License-Identifier: Apache-2.0
// The prefix cache of a GPU in host memory: --kv-cache-host-memory. With --kv-cache-dir it is
// before the disk (kv_disk.h).
#pragma once

#include <memory>

#include "engine/contract/page_tier.h"
#include "engine/page_store/host_store.h"
#include "server/app/options.h"
#include "server/app/session/model_session.h"

namespace diffserve {

// nullptr without --kv-cache-host-memory. Takes the memory. REQUIRES: the session's executor is not
// made yet. Errors: kInvalidArgument that names the flag; kResourceExhausted.
Result<std::unique_ptr<PageTier>> OpenKvHost(const ServeOptions& serve, ModelSession& session);

// Refuses --kv-cache-host-memory on the CPU.
Status CheckKvHost(const ServeOptions& serve, const SessionPlan& plan);
// The host memory before the disk: --kv-cache-host-memory, or a little without it. REQUIRES: as
// OpenKvHost; a GPU. Errors: likewise.
Result<std::unique_ptr<HostStore>> OpenHostBeforeDisk(const ServeOptions& serve,
                                                      ModelSession& session);
// A tier over a store of a GPU's pages.
std::unique_ptr<PageTier> TierOfGpu(std::unique_ptr<EntryStore> store, ModelSession& session);

}  // namespace diffserve
