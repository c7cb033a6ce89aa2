// SPDX-License-Identifier: Apache-2.0
// The prompt of logits and generate as token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"
#include "models/model_config.h"
#include "server/app/options.h"

namespace diffserve {

inline constexpr char kTokensFlag[] = "--tokens";

// nullptr: none is needed, because the prompt is token ids, and the model has none.
Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& model_dir, bool is_needed);

// From --tokens, where @FILE names a file. Error: unreadable, no id, or an id outside the
// vocabulary.
Result<std::vector<int32_t>> PromptTokenIds(const PromptOptions& prompt, int vocab_size);

Status CheckIds(const std::vector<int32_t>& ids, int vocab_size, const std::string& param);

}  // namespace diffserve
