#include "server/token_rules.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/response_stream.h"
#include "engine/token_constraint.h"
#include "server/request_checks.h"

namespace diffserve {
namespace {

using TokenSequences = std::vector<std::vector<int32_t>>;

std::vector<uint32_t> MaskOf(const std::vector<int32_t>& ids, int vocab_size) {
  std::vector<uint32_t> mask(MaskWords(vocab_size), 0);
  for (const int32_t id : ids) mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
  return mask;
}

// The texts by which a word may enter an answer: at its begin, and after a space.
std::vector<std::string> FormsOf(const std::string& word) {
  const size_t begin = word.find_first_not_of(' ');
  if (begin == std::string::npos) return {word};
  return {word.substr(begin), " " + word.substr(begin)};
}

}  // namespace

Result<TokenRules> MakeTokenRules(const GenerateRequest& request, const Tokenizer& tokenizer,
                                  int vocab_size) {
  TokenRules rules;
  if (!request.allowed_token_ids.empty()) {
    rules.allowed = std::make_shared<const std::vector<uint32_t>>(
        MaskOf(request.allowed_token_ids, vocab_size));
  }
  TokenSequences sequences;
  for (const std::string& word : request.bad_words) {
    for (const std::string& text : FormsOf(word)) {
      Result<std::vector<int32_t>> ids = tokenizer.Encode(text, /*add_special_tokens=*/false);
      if (!ids.ok()) return Status(ids.status().code(), ids.status().message(), "bad_words");
      DS_RETURN_IF_ERROR(CheckTokenIds(*ids, vocab_size, "bad_words"));
      if (!ids->empty()) sequences.push_back(std::move(ids).value());
    }
  }
  std::ranges::sort(sequences);
  const auto repeated = std::ranges::unique(sequences);
  sequences.erase(repeated.begin(), repeated.end());
  if (!sequences.empty())
    rules.bad_words = std::make_shared<const TokenSequences>(std::move(sequences));
  return rules;
}

size_t TokenRuleBytes(const GenerateRequest& request, int vocab_size) {
  size_t bytes = HeapBytes(request.allowed_token_ids.size() * sizeof(int32_t));
  if (!request.allowed_token_ids.empty())
    bytes += HeapBytes(MaskWords(vocab_size) * sizeof(uint32_t));
  for (const std::string& word : request.bad_words) {
    bytes += sizeof(word) + HeapBytes(word.size()) +
             2 * (sizeof(TokenSequences::value_type) +
                  HeapBytes((word.size() + 1) * sizeof(int32_t)));  // a token is a byte at least
  }
  return bytes;
}

SharedTokens Truncated(SharedTokens ids, const GenerateRequest& request, int context) {
  if (!request.truncate_prompt_tokens) return ids;
  int most = *request.truncate_prompt_tokens;
  if (most < 0) {
    const int output = request.max_tokens.value_or(
        std::max({1, request.max_tokens_default, request.min_tokens}));
    most = std::max(1, context - output);
  }
  const std::vector<int32_t>& all = ids.ids();
  if (all.size() <= static_cast<size_t>(most)) return ids;
  return SharedTokens(request.truncate_right ? std::vector<int32_t>(all.begin(), all.begin() + most)
                                             : std::vector<int32_t>(all.end() - most, all.end()));
}

}  // namespace diffserve
