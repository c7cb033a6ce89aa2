// SPDX-License-Identifier: Apache-2.0
// What the host does between two decodes: the engine's turn without the wait for the device. Only
// this part can leave the device idle, and none of it depends on the size of the model.
#pragma once

#include <functional>
#include <string>

namespace diffserve::bench {

// Microseconds of a turn with 1, 64 and 256 sequences that have 4,096 tokens each:
// host_us_batch_N of the whole turn, host_launch_us_batch_N of the model's part in it, which packs
// the step and queues it. In a smoke test, and on the CPU, the kernels do not run.
void AddHostFigures(bool smoke, const std::function<void(const std::string&, double)>& add);

}  // namespace diffserve::bench
