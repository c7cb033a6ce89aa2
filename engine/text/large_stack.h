// SPDX-License-Identifier: Apache-2.0
// A stack that is large enough for each grammar.
#pragma once

#include <functional>

#include "kernels/base/status.h"

namespace diffserve {

// Runs `work` on a thread of its own with a stack of 64 MiB, and waits for its end. What is not
// used of the stack costs no memory. Error: kResourceExhausted, the thread could not be started.
Status RunOnLargeStack(const std::function<void()>& work);

}  // namespace diffserve
