// SPDX-License-Identifier: Apache-2.0
// Checks of members that several APIs share. Thread safety: as JsonFields.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/json/json.h"
#include "server/api/openai/request.h"

namespace diffserve {

// kPlainSamplingFields.
std::vector<std::string_view> SamplingMembers();

// Refuses members that no list contains, if the chat route would act on them or refuse them, unless
// their value means off. With --strict, refuses all unknown members.
void RefuseMembersBeyond(JsonFields& fields,
                         std::initializer_list<std::vector<std::string_view>> known, bool strict);

// An integer of at least `min`; `absent` if it is missing.
int IntAtLeast(JsonFields& fields, std::string_view name, int min, int absent);

}  // namespace diffserve
