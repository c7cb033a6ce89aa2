// SPDX-License-Identifier: Apache-2.0
// Reads device memory at its best rate, for probes and benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/cuda/stream.h"

namespace diffserve::cuda {

// Reads all bytes (a multiple of 16) once, 16 per thread at a time, by `num_thread_blocks` blocks
// of 512 threads; `sink` is practically never written.
Status ReadStream(const void* data, size_t bytes, int num_thread_blocks, uint32_t* sink,
                  const Stream& stream);

}  // namespace diffserve::cuda
