// Which slots a query of a layer with a window sees (DiffAttentionArgs::window): its own and the
// last ones before it. Compiled by the host's compilers, for every level and by nvcc.
#pragma once

#include "kernels/base/host_device.h"

namespace diffserve {

// A window that no context fills: a query sees every slot before it. Small enough for differences
// of slots and it.
inline constexpr int kWholeContext = 1 << 30;

// DiffAttentionArgs::window as a number of slots, at most kWholeContext.
DIFFSERVE_HOST_DEVICE constexpr int WindowSlots(int window) {
  return window > 0 && window < kWholeContext ? window : kWholeContext;
}

// The first slot that a query at `position` sees. `window`: of WindowSlots.
DIFFSERVE_HOST_DEVICE constexpr int FirstSlotSeen(int position, int window) {
  return position >= window ? position - window + 1 : 0;
}

}  // namespace diffserve
