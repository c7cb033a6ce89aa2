// SPDX-License-Identifier: Apache-2.0
// A chat template that the operator gives instead of the model's own: a file, or one that is built
// in. Thread safety: functions without state.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace diffserve {

inline constexpr char kChatTemplateFlag[] = "--chat-template";

// "chatml, llama3, ..."
std::string BuiltInTemplateNames();

// The Jinja text of `given`: the name of a built-in template, or else the path of a file. Error:
// one line with the flag, the path and the reason.
Result<std::string> ReadGivenTemplate(const std::string& given);

}  // namespace diffserve
