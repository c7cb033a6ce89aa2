// SPDX-License-Identifier: Apache-2.0
// What the shim's cuBLASLt does that a cuBLASLt might do, for tests to choose.
#pragma once

#include <cstddef>
#include <cstdint>

namespace diffserve::shim {

struct SimulatedProducts {
  bool is_installed = true;                   // false: no path leads to the library
  int split_k_of_first_candidate = 1;         // the second never splits
  int rows_refused = 0;                       // cublasLtMatmulAlgoCheck says no to that many rows
  size_t workspace_bytes_of_candidates = 64;  // of each
  int64_t choices_made = 0;                   // calls of cublasLtMatmulAlgoGetHeuristic
  int64_t rows_multiplied = 0;                // of all products that have run
};
inline SimulatedProducts simulated_products;

}  // namespace diffserve::shim
