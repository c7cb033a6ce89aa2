// SPDX-License-Identifier: Apache-2.0
// OpenAI's /v1/responses. Answers are kept in memory for the client that asked.
#pragma once

#include "server/api/door/route.h"

namespace diffserve {

Api ResponsesApi();

}  // namespace diffserve
