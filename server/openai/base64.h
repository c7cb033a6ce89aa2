// Base64 of RFC 4648 with padding.
#pragma once

#include <string>
#include <string_view>

namespace diffserve {

// Of a text in pieces: each but the last has a multiple of 3 bytes.
void AppendBase64(std::string_view bytes, std::string* out);

}  // namespace diffserve
