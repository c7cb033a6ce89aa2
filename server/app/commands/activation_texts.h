// SPDX-License-Identifier: Apache-2.0
// The file of inspect --activations: JSON lines, each a sequence to run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"
#include "models/diagnostics/activation_figures.h"

namespace diffserve {

struct ActivationText {
  std::vector<int32_t> tokens;
  AnswerSpans spans;
};

// Limits that a line is checked against.
struct ActivationLimits {
  const Tokenizer* tokenizer = nullptr;  // nullptr: "text" is refused
  int vocab_size = 0;
  int max_tokens = 0;
};

// One line: {"text": "..."} or {"tokens": [...]}, and, if there is an answer to follow,
// "spans": {"answer": [[begin, end], ...], "query_from": position}, in tokens.
Result<ActivationText> ParseActivationText(std::string_view line, const ActivationLimits& limits);

// All lines of the file; empty lines are skipped. Error: the file is unreadable or has no line, or
// a line is invalid (with its number).
Result<std::vector<ActivationText>> ReadActivationTexts(const std::string& path,
                                                        const ActivationLimits& limits);

}  // namespace diffserve
