// SPDX-License-Identifier: Apache-2.0
// The APIs of the HTTP port. Each has a folder of its own, and a line in apis.cc.
#pragma once

#include <vector>

#include "server/api/api_context.h"
#include "server/api/door/route.h"

namespace diffserve {

std::vector<Api> AllApis(const HttpRoutesOptions& options);

}  // namespace diffserve
