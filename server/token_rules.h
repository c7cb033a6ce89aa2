// TokenRules: what a request says of the tokens that may be drawn (allowed_token_ids, bad_words),
// made what the engine takes; and which tokens of a prompt are kept where it is to be truncated.
// Thread safety: pure functions; text threads call them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/text/tokenizer.h"
#include "server/frontend.h"

namespace diffserve {

struct TokenRules {
  std::shared_ptr<const std::vector<uint32_t>> allowed;  // as Request has them
  std::shared_ptr<const std::vector<std::vector<int32_t>>> bad_words;
};

// Each bad word counts where it begins a text and where it follows a space. Error: a word that has
// a token beyond the model's vocabulary. REQUIRES: CheckRequest has passed.
Result<TokenRules> MakeTokenRules(const GenerateRequest& request, const Tokenizer& tokenizer,
                                  int vocab_size);
// What they take of memory, at most.
size_t TokenRuleBytes(const GenerateRequest& request, int vocab_size);

// `ids` without what `request` wants left out of a prompt. `context`: tokens of a prompt and its
// output together.
SharedTokens Truncated(SharedTokens ids, const GenerateRequest& request, int context);

}  // namespace diffserve
