// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/chat_body.h"

#include <algorithm>
#include <utility>

#include "server/api/fields/chat_fields.h"
#include "server/api/openai/request.h"

namespace diffserve {

void ChatMessages::Begin() {
  if (!messages_.empty()) messages_ += ',';
}

void ChatMessages::EndAssistant() {
  if (!std::exchange(in_assistant_, false)) return;
  Begin();
  messages_ += "{\"role\":\"assistant\",\"content\":" + std::exchange(content_, {});
  if (!calls_.empty()) messages_ += ",\"tool_calls\":[" + std::exchange(calls_, {}) + "]";
  messages_ += '}';
}

void ChatMessages::Say(std::string_view role, const std::vector<std::string>& texts) {
  EndAssistant();
  std::string content;
  if (texts.size() <= 1) {
    content = texts.empty() ? "\"\"" : JsonQuoted(texts.front());
  } else {
    for (const std::string& text : texts)
      content += (content.empty() ? "[" : ",") +
                 ("{\"type\":\"text\",\"text\":" + JsonQuoted(text)) + "}";
    content += "]";
  }
  if (role == "assistant") {
    in_assistant_ = true;
    content_ = std::move(content);
    return;
  }
  Begin();
  messages_ += "{\"role\":" + JsonQuoted(role) + ",\"content\":" + content + "}";
}

void ChatMessages::Call(std::string_view id, std::string_view name, std::string_view arguments) {
  if (!in_assistant_) Say("assistant", {});
  if (!calls_.empty()) calls_ += ',';
  calls_ += "{\"id\":" + JsonQuoted(id) +
            ",\"type\":\"function\",\"function\":{\"name\":" + JsonQuoted(name) +
            ",\"arguments\":" + JsonQuoted(arguments) + "}}";
}

void ChatMessages::Answer(std::string_view call_id, std::string_view text) {
  EndAssistant();
  Begin();
  messages_ += "{\"role\":\"tool\",\"tool_call_id\":" + JsonQuoted(call_id) +
               ",\"content\":" + JsonQuoted(text) + "}";
}

void ChatMessages::Append(std::string_view messages) {
  EndAssistant();
  if (messages.empty()) return;
  Begin();
  messages_ += messages;
}

std::string ChatMessages::Take() {
  EndAssistant();
  return std::exchange(messages_, {});
}

void ChatBody::Add(std::string_view name, std::string_view json) {
  if (!members_.empty()) members_ += ',';
  members_ += JsonQuoted(name) + ":";
  members_ += json;
}

void ChatBody::Copy(const JsonFields& fields, std::string_view name) {
  if (fields.Has(name)) Add(name, fields.JsonText(name));
}

void ChatBody::CopySampling(const JsonFields& fields) {
  for (const std::string_view name : SamplingMembers()) Copy(fields, name);
}

std::vector<std::string_view> SamplingMembers() {
  return {"temperature",
          "top_p",
          "top_k",
          "min_p",
          "presence_penalty",
          "frequency_penalty",
          "repetition_penalty",
          "logit_bias",
          "seed",
          "min_tokens",
          "stop_token_ids",
          "ignore_eos",
          "skip_special_tokens",
          "include_stop_str_in_output",
          "cache_salt"};
}

std::string ChatTool(std::string_view name, std::string_view description,
                     std::string_view parameters, std::string_view strict) {
  std::string tool = "{\"type\":\"function\",\"function\":{\"name\":" + JsonQuoted(name);
  if (!description.empty()) tool += ",\"description\":" + JsonQuoted(description);
  if (parameters != "null") tool += ",\"parameters\":" + std::string(parameters);
  if (strict != "null") tool += ",\"strict\":" + std::string(strict);
  return tool + "}}";
}

void RefuseMembersBeyond(JsonFields& fields,
                         std::initializer_list<std::vector<std::string_view>> known, bool strict) {
  for (const std::string& name : fields.Names()) {
    const bool found = std::ranges::any_of(known, [&name](const auto& names) {
      return std::ranges::find(names, name) != names.end();
    });
    if (found) continue;
    if (IsChatMember(name)) {
      const bool is_one = (name == "n" || name == "best_of") && fields.JsonText(name) == "1";
      if (!fields.IsOff(name) && !is_one) fields.Fail(Unsupported(name, " on this route"));
      continue;
    }
    if (!strict) continue;
    const std::string shown = name.substr(0, 64);
    fields.Fail(
        InvalidArgument("unknown member '" + shown + "' (the server runs with --strict)", shown));
  }
}

int IntAtLeast(JsonFields& fields, std::string_view name, int min, int absent) {
  if (!fields.Has(name)) return absent;
  int value = absent;
  fields.Count(name, &value);
  if (fields.status().ok() && value < min) {
    fields.Fail(InvalidArgument(std::string(name) + " is " + std::to_string(value) + "; at least " +
                                    std::to_string(min) + " is allowed",
                                std::string(name)));
  }
  return value;
}

}  // namespace diffserve
