// SPDX-License-Identifier: Apache-2.0
// Base64 of RFC 4648 with padding.
#pragma once

#include <string>
#include <string_view>

namespace diffserve {

// Appends one piece of a text; each piece except the last has a multiple of 3 bytes.
void AppendBase64(std::string_view bytes, std::string* out);

}  // namespace diffserve
