// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/random_bits.h"

#include <sys/random.h>

#include <array>
#include <bit>
#include <cerrno>
#include <system_error>

#include "kernels/process/check.h"

namespace diffserve {

void FillRandom(std::span<unsigned char> bytes) {
  while (!bytes.empty()) {
    const ssize_t filled = getrandom(bytes.data(), bytes.size(), 0);
    if (filled < 0 && errno == EINTR) continue;
    DS_CHECK(filled > 0, "getrandom: " + std::generic_category().message(errno));
    bytes = bytes.subspan(static_cast<size_t>(filled));
  }
}

uint64_t RandomBits() {
  std::array<unsigned char, sizeof(uint64_t)> bytes;
  FillRandom(bytes);
  return std::bit_cast<uint64_t>(bytes);
}

}  // namespace diffserve
