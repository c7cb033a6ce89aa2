// SPDX-License-Identifier: Apache-2.0
// POST /v1/attention: the attention maps of a text.
#pragma once

#include "server/api/door/route.h"

namespace diffserve {

Api AttentionApi();

}  // namespace diffserve
