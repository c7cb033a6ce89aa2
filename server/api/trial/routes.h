// SPDX-License-Identifier: Apache-2.0
// POST /v1/trial/completions: a copy of /v1/completions, for one text.
#pragma once

#include "server/api/fields/members.h"
#include "server/api/route.h"

namespace diffserve {

namespace members {

inline constexpr MemberRow kTrial[] = {
    {kServed, "model prompt stream stream_options"},
};
inline constexpr MemberTable kTrialTables[] = {kTrial, kSampling, kGeneration};

}  // namespace members

Api TrialApi();

}  // namespace diffserve
