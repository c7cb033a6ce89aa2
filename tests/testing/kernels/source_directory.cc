// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/kernels/source_directory.h"

#include <cstdlib>

namespace diffserve {

std::string SourceDirectory() {
  const char* const elsewhere = std::getenv("DIFFSERVE_SOURCE_DIR");
  return elsewhere == nullptr ? DIFFSERVE_SOURCE_DIR : elsewhere;
}

}  // namespace diffserve
