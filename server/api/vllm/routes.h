// SPDX-License-Identifier: Apache-2.0
// vLLM's routes for clients that do the text work themselves: token ids in and out.
#pragma once

#include "server/api/door/route.h"

namespace diffserve {

Api VllmApi();

}  // namespace diffserve
