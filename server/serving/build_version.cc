// SPDX-License-Identifier: Apache-2.0
#include "server/serving/build_version.h"

namespace diffserve {

std::string_view BuildVersion() { return DIFFSERVE_VERSION; }
std::string_view BuildCommit() { return DIFFSERVE_COMMIT; }

}  // namespace diffserve
