// SPDX-License-Identifier: Apache-2.0
// What Boost.Beast reads where the gate accepts a request head: two parsers that agree leave no
// room for a smuggled request.
#pragma once

#include <string_view>

#include "server/http/message.h"

namespace diffserve::testing {

// Whether Beast reads the method, target and fields of `head` from `raw`, which runs through the
// empty line.
bool IsReadAlike(std::string_view raw, const HttpHead& head);

}  // namespace diffserve::testing
