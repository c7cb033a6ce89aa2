// SPDX-License-Identifier: Apache-2.0
// Health, metrics, version, load, the prefix cache's reset, and the page that a person opens.
#pragma once

#include "server/api/api_context.h"
#include "server/api/door/route.h"

namespace diffserve {

Api OpsApi(const HttpRoutesOptions& options);

}  // namespace diffserve
