// SPDX-License-Identifier: Apache-2.0
// Parameter values in call syntaxes without types. Each value is text; it becomes JSON by the type
// that the tool's schema gives to the parameter.
// Thread safety: functions without state.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace diffserve {

// The types that a parameter may have, as bits.
struct ParameterType {
  static constexpr uint8_t kString = 1, kInteger = 2, kNumber = 4, kBoolean = 8, kObject = 16,
                           kArray = 32, kNull = 64;
  static constexpr uint8_t kAny = 127;  // the schema does not say: text unless it is an object or
                                        // array
};

// Bits of the types by tool name and parameter name.
using ParameterTypes = std::map<std::pair<std::string, std::string>, uint8_t, std::less<>>;

// The value as JSON text. Text that matches none of the types becomes a string, so the client sees
// what the model wrote.
std::string ParameterJson(std::string_view text, uint8_t types);

}  // namespace diffserve
