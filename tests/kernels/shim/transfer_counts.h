// SPDX-License-Identifier: Apache-2.0
// How many copies between host and device a program has queued on the simulated device.
#pragma once

#include <cstdint>

namespace diffserve::shim {

struct TransferCounts {
  int64_t to_device = 0;
  int64_t to_host = 0;
};
inline TransferCounts transfer_counts;

}  // namespace diffserve::shim
