// SPDX-License-Identifier: Apache-2.0
// The parameter types of a tool's JSON schema, for call syntaxes that write values without types
// (server/serving/tools/parameter_value.h). Thread safety: functions without state.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace diffserve {

// ParameterType's bits, by parameter. `schema`: an object, as JSON text; empty: no parameter.
std::map<std::string, uint8_t> ParameterTypesOf(std::string_view schema);

}  // namespace diffserve
