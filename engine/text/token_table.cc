// SPDX-License-Identifier: Apache-2.0
#include "engine/text/token_table.h"

namespace diffserve {
namespace {

// A UTF-8 character has at most 4 bytes, so earlier bytes do not affect an incomplete one.
constexpr size_t kMaxCharacterBytes = 4;

}  // namespace

bool TokenTable::HasText(int32_t id, bool skip_special_tokens) const {
  if (!Contains(id) || (flags[static_cast<size_t>(id)] & kIsToken) == 0) return false;
  return !(skip_special_tokens && IsSpecial(id)) && !Bytes(id).empty();
}

size_t TokenTable::OpeningTokens(std::span<const int32_t> ids, bool skip_special_tokens) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (HasText(ids[i], skip_special_tokens)) return i + 1;
  }
  return ids.size();
}

TokenStream::TokenStream(const TokenTable& table, bool skip_special_tokens,
                         std::span<const int32_t> context)
    : table_(&table),
      skip_special_tokens_(skip_special_tokens),
      repair_(table.decoding == TokenTable::Decoding::kBytes ? Utf8Repair::Unit::kByte
                                                             : Utf8Repair::Unit::kCharacter) {
  size_t begin = context.size();
  for (size_t bytes = 0; begin > 0 && bytes < kMaxCharacterBytes;) {
    const int32_t id = context[--begin];
    if (table.HasText(id, skip_special_tokens)) bytes += table.Bytes(id).size();
  }
  std::string before;
  for (const int32_t id : context.subspan(begin)) Push(id, before);
}

void TokenStream::Push(int32_t id, std::string& out) {
  if (!table_->HasText(id, skip_special_tokens_)) return;
  repair_.Push(at_start_ ? table_->FirstBytes(id) : table_->Bytes(id), out);
  at_start_ = false;
}

void TokenStream::Finish(std::string& out) { repair_.Finish(out); }

}  // namespace diffserve
