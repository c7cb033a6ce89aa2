// SPDX-License-Identifier: Apache-2.0
#include "models/convert/json_members.h"

#include <algorithm>

#include "kernels/base/refusal.h"
#include "models/config_reader.h"

namespace diffserve {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

struct Member {
  std::string before;  // the text between the member before it (or the brace) and its key
  std::string key;     // without its quotes
  std::string middle;  // the colon with its space
  std::string value;
};

struct ObjectText {
  std::string head;  // up to and including the opening brace
  std::vector<Member> members;
  std::string tail;  // everything after the last value
};

// A cursor over text that is known to be valid JSON.
class ValidJson {
 public:
  ValidJson(std::string_view text, size_t position) : text_(text), position_(position) {}

  char next() const { return text_[position_]; }
  size_t position() const { return position_; }
  void SkipSpace() { position_ = text_.find_first_not_of(kSpace, position_); }
  void Skip(char c) {
    SkipSpace();
    if (next() == c) ++position_;
    SkipSpace();
  }
  std::string_view String() {
    const size_t begin = position_++;
    while (next() != '"') position_ += next() == '\\' ? size_t{2} : size_t{1};
    ++position_;
    return text_.substr(begin, position_ - begin);
  }
  std::string_view Value() {
    const size_t begin = position_;
    int depth = 0;
    while (depth > 0 || (next() != ',' && next() != '}')) {
      if (next() == '"') {
        String();
        continue;
      }
      depth += next() == '{' || next() == '[' ? 1 : next() == '}' || next() == ']' ? -1 : 0;
      ++position_;
    }
    const std::string_view value = text_.substr(begin, position_ - begin);
    const size_t size = value.find_last_not_of(kSpace) + 1;
    position_ = begin + size;
    return value.substr(0, size);
  }

 private:
  std::string_view text_;
  size_t position_;
};

ObjectText Take(std::string_view text) {
  ObjectText object;
  const size_t open = text.find('{') + 1;
  object.head = text.substr(0, open);
  ValidJson json(text, open);
  size_t behind = open;  // end of the last value, or of the brace
  while (true) {
    json.Skip(',');
    if (json.next() == '}') break;
    Member member;
    member.before = text.substr(behind, json.position() - behind);
    const std::string_view quoted = json.String();
    member.key = quoted.substr(1, quoted.size() - 2);
    const size_t middle = json.position();
    json.Skip(':');
    member.middle = text.substr(middle, json.position() - middle);
    member.value = json.Value();
    behind = json.position();
    object.members.push_back(std::move(member));
  }
  object.tail = text.substr(behind);
  return object;
}

void Apply(const MemberEdit& edit, ObjectText& object) {
  std::vector<Member>& members = object.members;
  const auto member = std::ranges::find(members, edit.key, &Member::key);
  if (member == members.end()) {
    if (!edit.add || !edit.value) return;
    const std::string before = members.size() > 1 ? members[1].before : members.empty() ? "" : ", ";
    members.push_back({before, edit.key, ": ", *edit.value});
  } else if (edit.value) {
    member->value = *edit.value;
  } else {
    // The first member has no comma before it.
    if (member == members.begin() && members.size() > 1) members[1].before = member->before;
    members.erase(member);
  }
}

}  // namespace

Result<std::string> EditMembers(std::string_view text, const std::string& file,
                                const std::vector<MemberEdit>& edits) {
  const Result<ConfigReader> valid = ConfigReader::Parse(text, file);
  if (!valid.ok()) return valid.status();
  ObjectText object = Take(text);
  for (const Member& member : object.members) {
    if (member.key.find('\\') != std::string::npos) {
      return NotAllowed(file + ": has a key with escapes", "plain keys");
    }
  }
  for (const MemberEdit& edit : edits) Apply(edit, object);
  std::string edited = object.head;
  for (const Member& member : object.members)
    edited += member.before + "\"" + member.key + "\"" + member.middle + member.value;
  return edited + object.tail;
}

}  // namespace diffserve
