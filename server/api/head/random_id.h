// SPDX-License-Identifier: Apache-2.0
// Ids that cannot be guessed from other ids, and secrets between processes.
// Thread safety: a function without state of ours.
#pragma once

#include <cstddef>
#include <string>

namespace diffserve {

// Random lower-case hexadecimal digits from the kernel's cryptographic generator, not all zero.
// Each digit has 4 bits; an id or secret that grants something has 32 digits or more.
// REQUIRES: digits > 0.
std::string RandomHex(size_t digits);

}  // namespace diffserve
