// SPDX-License-Identifier: Apache-2.0
// The prefix cache on disk: opens the directory of --kv-cache-dir for a loaded model.
#pragma once

#include <memory>
#include <string>

#include "engine/contract/page_tier.h"
#include "engine/page_store/page_record.h"
#include "server/app/options.h"
#include "server/app/session/model_session.h"

namespace diffserve {

// nullptr without --kv-cache-dir. The pages found are those of an earlier process with the same
// weights, config, number formats, CPU level or GPU, and page size, so they have the bits that this
// one would compute. A GPU's pages go through host memory (kv_host.h). REQUIRES: the session's
// executor is not made yet; as KvDiskFingerprint. Error: kInvalidArgument that names the flag.
Result<std::unique_ptr<PageTier>> OpenKvDisk(const ServeOptions& serve, ModelSession& session);

// Everything that a bit of a page depends on: the weights that were loaded, config, formats, CPU
// level or GPU.
// REQUIRES: ModelSession::Load has filled plan.model.digest, unless weights are dummies.
Fingerprint KvDiskFingerprint(const SessionPlan& plan);

}  // namespace diffserve
