// SPDX-License-Identifier: Apache-2.0
// What a text becomes, whatever tokenizer and text: ids of the vocabulary, no fewer than the
// tokenizer's own bound, a beginning of them under a limit, and the same text streamed as whole.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"
#include "kernels/process/check.h"

namespace diffserve::testing {

// Ids decoded at once and one by one.
inline void CheckDecoding(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                          bool skip_special_tokens) {
  const Result<std::string> whole = tokenizer.Decode(ids, skip_special_tokens);
  if (!whole.ok()) return;
  Detokenizer stream(tokenizer, skip_special_tokens);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.Push(id);
  streamed += stream.Finish();
  DS_CHECK(streamed == *whole, "deltas together are the text");
}

// The ids of `text`, or nothing if it was refused.
inline std::vector<int32_t> CheckedIds(const Tokenizer& tokenizer, std::string_view text,
                                       size_t limit) {
  const Result<std::vector<int32_t>> ids = tokenizer.Encode(text, false);
  if (!ids.ok()) {
    DS_CHECK(!ids.status().message().empty(), "a refusal says why");
    return {};
  }
  for (const int32_t id : *ids)
    DS_CHECK(id >= 0 && id < tokenizer.vocab_size(), "an id is of the vocabulary");
  const size_t bound = tokenizer.max_token_bytes();
  DS_CHECK(bound == 0 || text.size() <= bound * ids->size(), "no token stands for more bytes");
  const Result<std::vector<int32_t>> first = tokenizer.Encode(text, {.max_tokens = limit});
  DS_CHECK(first.ok(), "a limit refuses nothing");
  DS_CHECK(first->size() <= ids->size() &&
               std::ranges::equal(*first, std::span(*ids).first(first->size())),
           "a limit leaves out the end");
  DS_CHECK(first->size() == ids->size() || first->size() > limit, "a limit is passed, then kept");
  DS_CHECK(*tokenizer.Encode(text, {.max_tokens = ids->size()}) == *ids, "what fits stays whole");
  for (const bool skip : {false, true}) CheckDecoding(tokenizer, *ids, skip);
  return *ids;
}

}  // namespace diffserve::testing
