// SPDX-License-Identifier: Apache-2.0
// Base64 of RFC 4648 with padding.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "server/json/json_writer.h"

namespace diffserve {

// Appends one piece of a text; each piece except the last has a multiple of 3 bytes.
void AppendBase64(std::string_view bytes, std::string* out);

// Writes a text that is the base64 of the bytes which `append` adds for each of `count` numbers,
// piece by piece. REQUIRES: as JsonWriter::TextParts.
void WriteBase64(size_t count, std::function<void(size_t i, std::string* bytes)> append,
                 JsonWriter* json);

}  // namespace diffserve
