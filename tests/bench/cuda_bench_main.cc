// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/cuda_bench.h"

int main(int argc, char** argv) { return diffserve::bench::RunCudaBench(argc, argv); }
