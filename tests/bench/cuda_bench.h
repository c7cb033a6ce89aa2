// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels reach on this device, beside what the device itself does in the same
// seconds: prints one JSON object.
//   cuda_bench               some 60 seconds on an H200
//   cuda_bench --smoke       every figure's code once with tiny sizes, and no figure: the names of
//                            what ran
//   cuda_bench --host        the host's part of a step alone, also without a GPU
//   cuda_bench --only NAME   the calibration, and the figures whose names begin so
// Decode finds its pages outside the L2 cache; alternatives are measured in turns; figures are
// medians of 21 rounds.
#pragma once

namespace diffserve::bench {

// The program's main function.
int RunCudaBench(int argc, char** argv);

}  // namespace diffserve::bench
