// SPDX-License-Identifier: Apache-2.0
// The reply of /tokenizer_info, made once at the start.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace diffserve {

// The settings in tokenizer_config.json and chat_template.jinja of a model directory; absent ones
// are null. Error: one line with the file and the fault.
Result<std::string> TokenizerInfoBody(const std::string& model_dir);

}  // namespace diffserve
