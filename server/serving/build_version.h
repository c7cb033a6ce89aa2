// SPDX-License-Identifier: Apache-2.0
// What this build is, for --version, /version and the build info metric.
#pragma once

#include <string_view>

namespace diffserve {

// Both end with a null character.
std::string_view BuildVersion();
std::string_view BuildCommit();

}  // namespace diffserve
