// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/template_roles.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "engine/text/chat_template.h"
#include "server/serving/request/conversation.h"

namespace diffserve {
namespace {

std::string Probe(int number) { return "probe-" + std::to_string(number); }

// Whether a conversation of these roles shows the probes of these numbers.
bool Shows(const ChatTemplate& chat_template, const std::vector<const char*>& roles,
           std::initializer_list<int> numbers, const std::vector<Tool>& tools = {}) {
  Conversation conversation;
  conversation.tools = tools;
  for (size_t i = 0; i < roles.size(); ++i)
    conversation.messages.push_back({.role = roles[i], .content = Probe(static_cast<int>(i))});
  // A template that takes parts only shows no text.
  for (const ContentForm form : {ContentForm::kText, ContentForm::kParts}) {
    const TemplateJson json = TemplateJsonOf(conversation, {RoleForms(form), RoleForms(form)});
    const Result<RenderedChat> rendered = chat_template.Render(
        {.messages_json = json.messages, .add_generation_prompt = true, .tools_json = json.tools},
        nullptr);
    const bool shown = rendered.ok() && std::ranges::all_of(numbers, [&](int number) {
                         return rendered->text.find(Probe(number)) != std::string::npos;
                       });
    if (shown) return true;
  }
  return false;
}

}  // namespace

TemplateRoles RolesOf(const ChatTemplate* chat_template) {
  if (chat_template == nullptr) return {};
  Tool tool;
  tool.name = Probe(1);
  return {
      .developer = Shows(*chat_template, {"developer", "user"}, {0, 1}),
      .later_system = Shows(*chat_template,
                            {"system", "system", "user", "assistant", "user", "system"}, {0, 1, 5}),
      .system = Shows(*chat_template, {"system", "user"}, {0, 1}),
      .tools = Shows(*chat_template, {"user"}, {0, 1}, {tool})};
}

}  // namespace diffserve
