// SPDX-License-Identifier: Apache-2.0
// Where the repository is, for tests that read its files: where it was built, or what the variable
// DIFFSERVE_SOURCE_DIR says. Only one object file holds the path, so that the compiler cache serves
// the others to every clone.
#pragma once

#include <string>

namespace diffserve {

std::string SourceDirectory();

}  // namespace diffserve
