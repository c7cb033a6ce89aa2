// SPDX-License-Identifier: Apache-2.0
// The reply of /tokenizer_info, made once at the start.
#pragma once

#include <string>

#include "engine/text/chat_template.h"
#include "kernels/base/status.h"

namespace diffserve {

// The template that conversations use. `is_own`: it is from the model directory.
struct ServedTemplate {
  const ChatTemplate* chat_template = nullptr;  // nullptr: the model cannot chat
  bool is_own = true;
};

// The settings in tokenizer_config.json of a model directory, and the chat template in use; absent
// ones are null. Error: one line with the file and the fault.
Result<std::string> TokenizerInfoBody(const std::string& model_dir, const ServedTemplate& served);

}  // namespace diffserve
