// SPDX-License-Identifier: Apache-2.0
// The routes of Anthropic's Messages API.
#pragma once

#include "server/api/door/route.h"

namespace diffserve {

Api AnthropicApi();

}  // namespace diffserve
