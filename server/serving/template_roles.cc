// SPDX-License-Identifier: Apache-2.0
#include "server/serving/template_roles.h"

#include <initializer_list>
#include <string>
#include <string_view>

#include "engine/text/chat_template.h"

namespace diffserve {
namespace {

bool Shows(const ChatTemplate& chat_template, std::string_view messages,
           std::initializer_list<std::string_view> contents) {
  const Result<RenderedChat> rendered = chat_template.Render(
      {.messages_json = messages, .add_generation_prompt = true}, nullptr);
  if (!rendered.ok()) return false;
  for (const std::string_view content : contents) {
    if (rendered->text.find(content) == std::string::npos) return false;
  }
  return true;
}

}  // namespace

TemplateRoles RolesOf(const ChatTemplate* chat_template) {
  if (chat_template == nullptr) return {};
  constexpr std::string_view kDeveloper =
      R"([{"role":"developer","content":"probe-1"},{"role":"user","content":"probe-2"}])";
  constexpr std::string_view kLaterSystem =
      R"([{"role":"system","content":"probe-1"},{"role":"system","content":"probe-2"},)"
      R"({"role":"user","content":"probe-3"},{"role":"assistant","content":"probe-4"},)"
      R"({"role":"user","content":"probe-5"},{"role":"system","content":"probe-6"}])";
  return {.developer = Shows(*chat_template, kDeveloper, {"probe-1", "probe-2"}),
          .later_system = Shows(*chat_template, kLaterSystem, {"probe-1", "probe-2", "probe-6"})};
}

}  // namespace diffserve
