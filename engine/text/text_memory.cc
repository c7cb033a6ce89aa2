// SPDX-License-Identifier: Apache-2.0
#include "engine/text/text_memory.h"

#include "engine/text/bytes_ffi.h"

namespace diffserve {

void OnFailedTextAllocation(void (*handler)(size_t bytes)) {
  diffserve_ffi::ffi_on_failed_allocation(handler);
}

}  // namespace diffserve
