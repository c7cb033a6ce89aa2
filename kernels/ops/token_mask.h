// SPDX-License-Identifier: Apache-2.0
// A mask over a vocabulary: token t is bit t % 32 of word t / 32. Bits beyond the vocabulary are
// ignored. Plain data only: see simd.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace diffserve {

inline constexpr int kMaskWordBits = 32;

DIFFSERVE_HOST_DEVICE constexpr size_t MaskWords(int vocab_size) {
  return (static_cast<size_t>(vocab_size) + kMaskWordBits - 1) / kMaskWordBits;
}

DIFFSERVE_HOST_DEVICE constexpr bool MaskHas(const uint32_t* mask, int64_t token) {
  return (mask[token / kMaskWordBits] >> (token % kMaskWordBits) & 1u) != 0;
}

}  // namespace diffserve
