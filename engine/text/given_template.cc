// SPDX-License-Identifier: Apache-2.0
#include "engine/text/given_template.h"

#include <string_view>

#include "engine/text/model_file.h"
#include "kernels/base/refusal.h"
#include "models/regular_file.h"

namespace diffserve {
namespace {

struct BuiltInTemplate {
  std::string_view name;
  std::string_view text;
};

constexpr BuiltInTemplate kBuiltIn[] = {
    // Qwen, Yi, and many fine-tuned models.
    {"chatml",
     "{%- for message in messages -%}"
     "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"},
    // Llama 3.
    {"llama3",
     "{{- bos_token -}}{%- for message in messages -%}"
     "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
     "{{- message['content'] | trim + '<|eot_id|>' -}}{%- endfor -%}"
     "{%- if add_generation_prompt -%}"
     "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif -%}"},
    // The bundled model, and what models/demo/train.py trains.
    {"demo",
     "{{- bos_token -}}{%- for message in messages -%}"
     "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"},
};

}  // namespace

std::string BuiltInTemplateNames() {
  std::string names;
  for (const BuiltInTemplate& built_in : kBuiltIn)
    names += (names.empty() ? "" : ", ") + std::string(built_in.name);
  return names;
}

Result<std::string> ReadGivenTemplate(const std::string& given) {
  for (const BuiltInTemplate& built_in : kBuiltIn) {
    if (built_in.name == given) return std::string(built_in.text);
  }
  const std::string place = std::string(kChatTemplateFlag) + " " + given;
  const Result<std::string> text = ReadRegularFile(given, kMaxTemplateBytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) {
    return NotAllowed(place + ": no such file", "a Jinja file, " + BuiltInTemplateNames(),
                      kChatTemplateFlag);
  }
  if (!text.ok()) {
    return InvalidArgument(std::string(kChatTemplateFlag) + " " + text.status().message(),
                           kChatTemplateFlag);
  }
  if (text->empty()) return InvalidArgument(place + ": is empty", kChatTemplateFlag);
  const size_t first = text->find_first_not_of(" \t\r\n");
  const size_t second = first == text->npos ? first : text->find_first_not_of(" \t\r\n", first + 1);
  // Jinja's marks have no quote after the brace.
  if (second != text->npos && (*text)[first] == '{' && (*text)[second] == '"') {
    return NotAllowed(place + ": is JSON",
                      "the Jinja text that such a file has in its member chat_template",
                      kChatTemplateFlag);
  }
  return text;
}

}  // namespace diffserve
