// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/content_forms.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/chat_template.h"
#include "kernels/process/log.h"
#include "server/json/json_writer.h"
#include "server/serving/request/conversation.h"

namespace diffserve {
namespace {

constexpr std::string_view kFirst = "probe-one", kSecond = "probe-two";

size_t IndexOf(std::string_view role) {
  return static_cast<size_t>(std::ranges::find(kContentRoles, role) - std::begin(kContentRoles));
}

// Whether the text before a probe shows the list itself, in the notation of Python or JSON:
// ... 'text': 'probe-one'
bool EndsInNotation(std::string_view before) {
  const size_t end = before.find_last_not_of("\"'\\: ") + 1;
  const std::string_view mark = before.substr(end);
  const bool quotes_the_name = mark.starts_with('\'') || mark.starts_with('"') ||
                               mark.starts_with("\\\"");
  return quotes_the_name && mark.find(':') != mark.npos && before.substr(0, end).ends_with("text");
}

bool Shows(std::string_view text, std::string_view probe) {
  const size_t at = text.find(probe);
  return at != text.npos && !EndsInNotation(text.substr(0, at));
}

// A conversation whose message of `role` has `texts`.
Conversation ProbeOf(std::string_view role, const std::vector<std::string>& texts, bool has_tools) {
  Conversation conversation;
  std::vector<Message>& messages = conversation.messages;
  const Message question{.role = "user", .content = "question"};
  Message probe{.role = std::string(role), .content = {}};
  probe.SetParts(texts);
  if (role == "assistant" || role == "tool") messages.push_back(question);
  if (role == "tool") {
    messages.push_back({.role = "assistant", .content = {}});
    messages.back().calls.push_back({"call00001", "search", "{}"});
    probe.name = "search";
    probe.tool_call_id = "call00001";
  }
  messages.push_back(std::move(probe));
  if (role != "user" && role != "tool") messages.push_back(question);
  if (has_tools) {
    Tool& tool = conversation.tools.emplace_back();
    tool.name = "search";
    tool.description = "Searches.";
    JsonWriter parameters(&tool.parameters_json);
    parameters.Begin('{').Add("type", "object").Key("properties").Begin('{').End('}').End('}');
  }
  return conversation;
}

RoleForms FindForms(const ChatTemplate& chat_template, bool has_tools) {
  RoleForms forms;
  const auto shows = [&](std::string_view role, ContentForm form,
                         const std::vector<std::string>& texts) {
    RoleForms tried = forms;  // those before in kContentRoles are known
    tried.Set(role, form);
    const TemplateJson json = TemplateJsonOf(ProbeOf(role, texts, has_tools), {tried, tried});
    const Result<RenderedChat> rendered = chat_template.Render(
        {.messages_json = json.messages, .add_generation_prompt = true, .tools_json = json.tools},
        nullptr);
    return rendered.ok() && std::ranges::all_of(texts, [&](const std::string& text) {
             return Shows(rendered->text, text);
           });
  };
  const std::string first(kFirst), second(kSecond);
  for (const std::string_view role : kContentRoles) {
    const bool text = shows(role, ContentForm::kText, {first});
    if (shows(role, ContentForm::kParts, {first, second}))
      forms.Set(role, text ? ContentForm::kTextOrParts : ContentForm::kParts);
    else if (!text && shows(role, ContentForm::kOnePart, {first}))
      forms.Set(role, ContentForm::kOnePart);
  }
  return forms;
}

// The words of --chat-template-content-format.
std::string NameOf(ContentForm form) {
  switch (form) {
    case ContentForm::kText:
      return "string";
    case ContentForm::kParts:
      return "openai";
    case ContentForm::kOnePart:
      return "openai, one part";
    case ContentForm::kTextOrParts:
      return "string or openai";
  }
  return {};
}

void LogForms(std::string_view format, const RoleForms& forms, const char* tools) {
  Log(LogLevel::kInfo, "content_format_chosen",
      {{"by", format == "auto" ? "chat_template" : "command_line"},
       {"tools", tools},
       {"user", NameOf(forms.Of("user"))},
       {"assistant", NameOf(forms.Of("assistant"))},
       {"system", NameOf(forms.Of("system"))},
       {"tool", NameOf(forms.Of("tool"))}});
}

}  // namespace

ContentForm RoleForms::Of(std::string_view role) const {
  const size_t index = IndexOf(role);
  return index == forms_.size() ? ContentForm::kText : forms_[index];
}

void RoleForms::Set(std::string_view role, ContentForm form) { forms_.at(IndexOf(role)) = form; }

ContentForms ContentFormsOf(const ChatTemplate* chat_template) {
  if (chat_template == nullptr) return {};
  return {FindForms(*chat_template, /*has_tools=*/false),
          FindForms(*chat_template, /*has_tools=*/true)};
}

ContentForms ChooseContentForms(std::string_view format, const ChatTemplate* chat_template) {
  if (chat_template == nullptr) return {};
  ContentForms forms = ContentFormsOf(chat_template);
  if (format != "auto") {
    const RoleForms all(format == "openai" ? ContentForm::kParts : ContentForm::kText);
    forms = {all, all};
  }
  LogForms(format, forms.without_tools, "no");
  if (forms.with_tools != forms.without_tools) LogForms(format, forms.with_tools, "yes");
  return forms;
}

}  // namespace diffserve
