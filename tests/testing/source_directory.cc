// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/source_directory.h"

namespace diffserve {

std::string SourceDirectory() { return DIFFSERVE_SOURCE_DIR; }

}  // namespace diffserve
