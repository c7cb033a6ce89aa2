// SPDX-License-Identifier: Apache-2.0
// What a build's kernels run on. `architectures` is DIFFSERVE_CUDA_ARCHITECTURES of the build, with
// spaces between: "80 90a". A compute capability is 10 * major + minor.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>

namespace diffserve::cuda {

// Machine code runs on devices of the same major and no lower minor version; with a letter, on its
// own only.
inline bool HasMachineCode(const std::string& architectures, int compute_capability) {
  std::istringstream list(architectures);
  for (std::string one; list >> one;) {
    const int number = std::atoi(one.c_str());
    const bool is_alike = number / 10 == compute_capability / 10 && number <= compute_capability;
    if (one.back() == 'a' ? number == compute_capability : is_alike) return true;
  }
  return false;
}

// Whether the driver can compile the portable kernels' PTX, of compute_90, for it. On Hopper other
// kernels are chosen.
inline bool HasPortableCode(const std::string& architectures, int compute_capability) {
  std::istringstream list(architectures);
  for (std::string one; list >> one;) {
    if (one.back() != 'a' && compute_capability >= 100) return true;
  }
  return false;
}

}  // namespace diffserve::cuda
