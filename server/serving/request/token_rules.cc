// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/token_rules.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/contract/token_constraint.h"
#include "engine/response_stream.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

using TokenSequences = std::vector<std::vector<int32_t>>;

std::vector<uint32_t> MaskOf(const std::vector<int32_t>& ids, int vocab_size) {
  std::vector<uint32_t> mask(MaskWords(vocab_size), 0);
  for (const int32_t id : ids) mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
  return mask;
}

// The forms of a word within an answer: at its start, and after a space.
std::vector<std::string> FormsOf(const std::string& word) {
  const size_t begin = word.find_first_not_of(' ');
  if (begin == std::string::npos) return {word};
  return {word.substr(begin), " " + word.substr(begin)};
}

bool Spells(const Tokenizer& tokenizer, std::span<const int32_t> ids, std::string_view text) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.TokenBytes(id);
  return bytes == text;
}

// The tokens of `text` within an answer. A tokenizer may add a space before a text. Then the
// encoding of the text by itself is the one after a space; after another character there is no
// space.
Result<TokenSequences> SequencesOf(const std::string& text, const Tokenizer& tokenizer) {
  const std::string other = "\n";
  TokenSequences sequences(1);
  DS_RETURN_IF_ERROR(Assign(&sequences[0], tokenizer.Encode(text, /*add_special_tokens=*/false)));
  if (Spells(tokenizer, sequences[0], text)) return sequences;
  std::vector<int32_t> begin, whole;
  DS_RETURN_IF_ERROR(Assign(&begin, tokenizer.Encode(other, /*add_special_tokens=*/false)));
  DS_RETURN_IF_ERROR(Assign(&whole, tokenizer.Encode(other + text, /*add_special_tokens=*/false)));
  if (whole.size() <= begin.size() || !std::equal(begin.begin(), begin.end(), whole.begin()))
    return sequences;
  whole.erase(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(begin.size()));
  if (Spells(tokenizer, whole, text)) sequences.push_back(std::move(whole));
  return sequences;
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
      Result<TokenSequences> found = SequencesOf(text, tokenizer);
      if (!found.ok()) return Status(found.status().code(), found.status().message(), "bad_words");
      for (std::vector<int32_t>& ids : *found) {
        DS_RETURN_IF_ERROR(CheckTokenIds(ids, vocab_size, "bad_words"));
        if (!ids.empty()) sequences.push_back(std::move(ids));
      }
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
             4 * (sizeof(TokenSequences::value_type) +
                  HeapBytes((word.size() + 1) * sizeof(int32_t)));  // a token has at least one byte
  }
  return bytes;
}

SharedTokens Truncated(SharedTokens ids, const GenerateRequest& request, int context) {
  if (!request.truncate_prompt_tokens) return ids;
  int most = *request.truncate_prompt_tokens;
  if (most < 0) {
    const int output = request.max_tokens.value_or(
        std::max({1, request.max_tokens_default, request.sampling.min_tokens}));
    most = std::max(1, context - output);
  }
  const std::vector<int32_t>& all = ids.ids();
  if (all.size() <= static_cast<size_t>(most)) return ids;
  return SharedTokens(request.truncate_right ? std::vector<int32_t>(all.begin(), all.begin() + most)
                                             : std::vector<int32_t>(all.end() - most, all.end()));
}

}  // namespace diffserve
