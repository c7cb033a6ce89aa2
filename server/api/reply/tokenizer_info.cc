// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply/tokenizer_info.h"

#include <nlohmann/json.hpp>

#include "engine/text/model_file.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson Member(const OrderedJson& config, const char* name) {
  const auto found = config.find(name);
  return found == config.end() ? OrderedJson(nullptr) : *found;
}

// A token is written as its text, or as an object with it.
OrderedJson TokenText(const OrderedJson& config, const char* name) {
  const OrderedJson token = Member(config, name);
  if (token.is_string()) return token;
  if (token.is_object() && token.contains("content") && token["content"].is_string())
    return token["content"];
  return nullptr;
}

// "No limit" is written as a number of 31 digits in this file.
OrderedJson LengthJson(const OrderedJson& config) {
  const OrderedJson length = Member(config, "model_max_length");
  return length.is_number_integer() ? length : OrderedJson(nullptr);
}

}  // namespace

Result<std::string> TokenizerInfoBody(const std::string& model_dir, const ServedTemplate& served) {
  const Result<std::string> text = ReadOptionalModelFile(model_dir, "tokenizer_config.json",
                                                         kMaxConfigBytes);
  if (!text.ok()) return text.status();
  const Result<std::string> jinja = ReadOptionalModelFile(model_dir, "chat_template.jinja",
                                                          kMaxTemplateBytes);
  if (!jinja.ok()) return jinja.status();
  OrderedJson config = OrderedJson::parse(text->empty() ? "{}" : *text, nullptr,
                                          /*allow_exceptions=*/false);
  if (!config.is_object())
    return InvalidArgument(model_dir + "/tokenizer_config.json: not a JSON object");
  return JsonObjectOf([&](JsonWriter& json) {
    const auto add = [&json](const char* name, const OrderedJson& value) {
      json.Key(name).Json(Dump(value));
    };
    add("tokenizer_class", Member(config, "tokenizer_class"));
    for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"})
      add(name, TokenText(config, name));
    for (const char* name : {"add_bos_token", "add_eos_token", "padding_side", "truncation_side"})
      add(name, Member(config, name));
    add("model_max_length", LengthJson(config));
    OrderedJson own = jinja->empty() ? Member(config, "chat_template") : OrderedJson(*jinja);
    if (served.chat_template == nullptr)
      own = nullptr;
    else if (!served.is_own || own.is_null())  // chat_template.json is another place of its own
      own = served.chat_template->Sources();
    add("chat_template", own);
  });
}

}  // namespace diffserve
