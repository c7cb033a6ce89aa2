// SPDX-License-Identifier: Apache-2.0
// What is queued on the streams of the simulated device, and memory that is released meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

namespace diffserve::shim {

size_t QueuedOperations();               // of all streams
inline int64_t releases_under_work = 0;  // of memory, while some stream has queued work

}  // namespace diffserve::shim
