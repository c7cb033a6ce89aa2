// SPDX-License-Identifier: Apache-2.0
// FetchModel: makes a commit of a repository complete in the hub's cache: what the loader reads and
// nothing else. Its config is checked before its weights are fetched.
#pragma once

#include <string>

#include "kernels/base/status.h"
#include "models/load_progress.h"
#include "server/hub/hub_settings.h"
#include "server/hub/model_name.h"
#include "server/hub/repository.h"

namespace diffserve {

// The snapshot's directory. Without the network, or with HF_HUB_OFFLINE, one that is complete in
// the cache will do, which is logged. Errors are one line that says what to do.
Result<std::string> FetchModel(const HubName& name, FileUse use, const HubSettings& settings,
                               LoadProgress& progress);

}  // namespace diffserve
