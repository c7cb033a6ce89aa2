// SPDX-License-Identifier: Apache-2.0
// Text on its way to and from the Rust library: borrowed on the way in, copied and freed on the way
// out.
#pragma once

#include <string>
#include <string_view>

#include "diffserve_text_ffi.h"

namespace diffserve {

// The library reads `text` only during the call.
inline diffserve_ffi::FfiStr Borrow(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Copies the library's bytes and frees them.
inline std::string Take(const diffserve_ffi::FfiBytes& bytes) {
  std::string copy(reinterpret_cast<const char*>(bytes.data), bytes.size);
  diffserve_ffi::ffi_bytes_free(bytes);
  return copy;
}

}  // namespace diffserve
