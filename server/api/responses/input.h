// SPDX-License-Identifier: Apache-2.0
// `input` of /v1/responses: a text, or items.
// Thread safety: as of JsonFields.
#pragma once

#include "server/api/responses/request.h"
#include "server/json/json.h"

namespace diffserve {

// Fills `messages` and `input`. Errors are in `fields`.
void ReadResponsesInput(JsonFields& fields, const FindResponseItem& find,
                        ResponsesRequest* request);

}  // namespace diffserve
