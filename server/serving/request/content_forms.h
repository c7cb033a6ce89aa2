// SPDX-License-Identifier: Apache-2.0
// In which form a chat template takes the content of a message: as a text, or as a list of parts,
// {"type": "text", "text": "..."}. A template shows nothing, or Python's notation, of the other
// form. Thread safety: functions without state.
#pragma once

#include <array>
#include <iterator>
#include <string_view>

namespace diffserve {

class ChatTemplate;

enum class ContentForm {
  kText,
  kParts,
  kOnePart,      // a list, of which only the first part is shown
  kTextOrParts,  // a text is shown, and each part of a list too
};

// The roles of messages.
inline constexpr std::string_view kContentRoles[] = {"user", "assistant", "system", "developer",
                                                     "tool"};

// Roles differ: there are templates that take parts from users and texts from others.
class RoleForms {
 public:
  RoleForms() = default;
  explicit RoleForms(ContentForm form) { forms_.fill(form); }
  ContentForm Of(std::string_view role) const;  // kText for an unknown role
  void Set(std::string_view role, ContentForm form);
  bool operator==(const RoleForms&) const = default;

 private:
  std::array<ContentForm, std::size(kContentRoles)> forms_ = {};
};

struct ContentForms {
  // Tools may choose another template, or another part of it.
  RoleForms without_tools, with_tools;
};

// Renders short conversations to see what is shown. A role that the template shows in no form gets
// texts. nullptr: there is no template.
ContentForms ContentFormsOf(const ChatTemplate* chat_template);

// --chat-template-content-format: "auto" finds the forms as above, "string" is kText for all roles,
// "openai" is kParts. Logs the forms if there is a template.
ContentForms ChooseContentForms(std::string_view format, const ChatTemplate* chat_template);

}  // namespace diffserve
