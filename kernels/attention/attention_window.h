// SPDX-License-Identifier: Apache-2.0
// The slots that a query sees in a layer with a window (DiffAttentionArgs::window): its own and the
// last ones before it. Compiled by the host compilers for every level, and by nvcc.
#pragma once

#include "kernels/base/host_device.h"

namespace diffserve {

// A window larger than any context: a query sees every slot before it. Small enough that slot -
// window does not overflow.
inline constexpr int kWholeContext = 1 << 30;

// DiffAttentionArgs::window as a number of slots, at most kWholeContext.
DIFFSERVE_HOST_DEVICE constexpr int WindowSlots(int window) {
  return window > 0 && window < kWholeContext ? window : kWholeContext;
}

// The first slot that a query at `position` sees. `window` is a result of WindowSlots.
DIFFSERVE_HOST_DEVICE constexpr int FirstSlotSeen(int position, int window) {
  return position >= window ? position - window + 1 : 0;
}

}  // namespace diffserve
