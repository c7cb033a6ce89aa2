// SPDX-License-Identifier: Apache-2.0
// TokenRules: the request's rules for tokens (allowed_token_ids, bad_words), converted for the
// engine. Truncated: which tokens of a long prompt are kept.
// Thread safety: pure functions; text threads call them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/text/tokenizer.h"
#include "server/serving/request/generate_request.h"

namespace diffserve {

struct TokenRules {
  std::shared_ptr<const std::vector<uint32_t>> allowed;  // as Request has them
  std::shared_ptr<const std::vector<std::vector<int32_t>>> bad_words;
};

// A bad word is banned at the start of a text and after a space. Error: a word has a token outside
// the model's vocabulary. REQUIRES: CheckRequest has passed.
Result<TokenRules> MakeTokenRules(const GenerateRequest& request, const Tokenizer& tokenizer,
                                  int vocab_size);
// Maximum bytes of memory that the rules take.
size_t TokenRuleBytes(const GenerateRequest& request, int vocab_size);

// The tokens of `ids` that remain after the request's truncation. `context`: maximum tokens of a
// prompt and its output.
SharedTokens Truncated(SharedTokens ids, const GenerateRequest& request, int context);

}  // namespace diffserve
