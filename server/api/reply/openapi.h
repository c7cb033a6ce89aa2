// SPDX-License-Identifier: Apache-2.0
// The description of the HTTP API, docs/openapi.json, which is embedded when the program is built.
// Thread safety: constant.
#pragma once

#include <string_view>

#include "server/http/message.h"

namespace diffserve {

std::string_view OpenApiText();
// The reply to GET /openapi.json.
HttpReply OpenApiReply();

}  // namespace diffserve
