// SPDX-License-Identifier: Apache-2.0
#include "server/api/fields/members.h"

#include <ranges>
#include <string>
#include <vector>

#include "kernels/process/log.h"
#include "server/api/fields/chat_fields.h"

namespace diffserve {
namespace {

constexpr size_t kMaxShownNameBytes = 64;

bool HasWord(std::string_view words, std::string_view word) {
  if (word.empty() || word.find(' ') != word.npos) return false;
  for (size_t at = words.find(word); at != words.npos; at = words.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' '))
      return true;
  }
  return false;
}

bool IsOff(JsonFields& fields, std::string_view name, const MemberRow& row) {
  if (!row.off) return fields.IsOff(name);
  float value = *row.off;
  fields.Float(name, &value);
  return value == *row.off;
}

// Every API returns one continuation.
bool IsOne(const JsonFields& fields, std::string_view name) {
  return (name == "n" || name == "best_of") && fields.JsonText(name) == "1";
}

}  // namespace

std::vector<std::string_view> NamesOf(const MemberRow& row) {
  std::vector<std::string_view> names;
  for (const auto word : std::views::split(row.names, ' '))
    names.emplace_back(word.begin(), word.end());
  return names;
}

const MemberRow* FindMember(MemberTables tables, std::string_view name) {
  for (const MemberTable table : tables) {
    for (const MemberRow& row : table) {
      if (HasWord(row.names, name)) return &row;
    }
  }
  return nullptr;
}

void CheckMembers(JsonFields& fields, MemberTables tables, MemberTables foreign) {
  std::vector<std::string> unknown;
  for (const std::string& name : fields.Names()) {
    if (const MemberRow* const row = FindMember(tables, name)) {
      if (row->use == MemberUse::kRefused && !IsOff(fields, name, *row))
        fields.Fail(Unsupported(fields.PathOf(name), row->why));
      continue;
    }
    const MemberRow* const other = FindMember(foreign, name);
    if (other != nullptr && other->use != MemberUse::kIgnored) {
      if (!fields.IsOff(name) && !IsOne(fields, name))
        fields.Fail(Unsupported(name, " on this route"));
      continue;
    }
    unknown.push_back(fields.PathOf(name.substr(0, kMaxShownNameBytes)));
  }
  if (unknown.empty()) return;
  Log(LogLevel::kDebug, "request_members_unknown",
      {{"first", unknown.front()}, {"count", std::to_string(unknown.size())}});
}

}  // namespace diffserve
