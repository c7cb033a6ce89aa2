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

bool Shows(const ChatTemplate& chat_template, const std::vector<const char*>& roles,
           std::initializer_list<int> numbers) {
  Conversation conversation;
  const auto probe = [](int number) { return "probe-" + std::to_string(number); };
  for (size_t i = 0; i < roles.size(); ++i)
    conversation.messages.push_back({.role = roles[i], .content = probe(static_cast<int>(i))});
  const TemplateJson json = TemplateJsonOf(conversation);
  const Result<RenderedChat> rendered = chat_template.Render(
      {.messages_json = json.messages, .add_generation_prompt = true}, nullptr);
  return rendered.ok() && std::ranges::all_of(numbers, [&](int number) {
           return rendered->text.find(probe(number)) != std::string::npos;
         });
}

}  // namespace

TemplateRoles RolesOf(const ChatTemplate* chat_template) {
  if (chat_template == nullptr) return {};
  return {
      .developer = Shows(*chat_template, {"developer", "user"}, {0, 1}),
      .later_system = Shows(
          *chat_template, {"system", "system", "user", "assistant", "user", "system"}, {0, 1, 5})};
}

}  // namespace diffserve
