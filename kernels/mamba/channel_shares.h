// SPDX-License-Identifier: Apache-2.0
// How the CPU's workers share a batch of stateful sequences: by channels. So sequences of any
// lengths divide evenly, and no state is shared.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/thread_pool.h"

namespace diffserve::cpu {

// Calls body(begin, end) for shares of the channels, each in whole cache lines. `work` is the
// approximate number of results.
template <typename Body>
void RunChannelShares(ThreadPool& pool, int channels, int64_t work, const Body& body) {
  constexpr int kLine = 16;  // floats
  constexpr int64_t kWorthWaking = 16384;
  RunShares(pool, (channels + kLine - 1) / kLine, work >= kWorthWaking,
            [&](int begin, int end) { body(begin * kLine, std::min(end * kLine, channels)); });
}

}  // namespace diffserve::cpu
