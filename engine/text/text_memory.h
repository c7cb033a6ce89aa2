// SPDX-License-Identifier: Apache-2.0
// Memory of the text library (engine/text/crates). The library cannot throw where an allocation
// fails, so the program names a function that ends it.
#pragma once

#include <cstddef>

namespace diffserve {

// From now on `handler` gets the bytes of such an allocation, on its thread. It must not return,
// and may allocate little. Only the first call counts.
void OnFailedTextAllocation(void (*handler)(size_t bytes));

}  // namespace diffserve
