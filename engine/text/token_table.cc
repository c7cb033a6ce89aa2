#include "engine/text/token_table.h"

namespace diffserve {

TokenStream::TokenStream(const TokenTable& table, bool skip_special_tokens)
    : table_(&table),
      skip_special_tokens_(skip_special_tokens),
      strip_left_(table.strip_max),
      repair_(table.decoding == TokenTable::Decoding::kBytes ? Utf8Repair::Unit::kByte
                                                             : Utf8Repair::Unit::kCharacter) {}

void TokenStream::Push(int32_t id, std::string& out) {
  if (!table_->Contains(id) || (table_->flags[static_cast<size_t>(id)] & TokenTable::kIsToken) == 0)
    return;
  if (skip_special_tokens_ && table_->IsSpecial(id)) return;
  const size_t begin = out.size();
  repair_.Push(first_ ? table_->FirstBytes(id) : table_->Bytes(id), out);
  first_ = false;
  Strip(out, begin);
}

void TokenStream::Finish(std::string& out) {
  const size_t begin = out.size();
  repair_.Finish(out);
  Strip(out, begin);
}

void TokenStream::Strip(std::string& out, size_t begin) {
  while (strip_left_ > 0 && out.size() > begin) {
    if (out.compare(begin, table_->strip.size(), table_->strip) != 0) {
      strip_left_ = 0;
      return;
    }
    out.erase(begin, table_->strip.size());
    --strip_left_;
  }
}

}  // namespace diffserve
