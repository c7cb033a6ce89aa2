// SPDX-License-Identifier: Apache-2.0
// The bodies that are written as a whole: a rendered prompt and the tokenizer info.
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/text/model_file.h"
#include "server/api/fields/structured_fields.h"
#include "server/api/vllm/encoder.h"

namespace diffserve {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// The shortest number that is read as the same float.
OrderedJson FloatJson(float value) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text) - 1, value);
  if (end.ec != std::errc()) return value;
  *end.ptr = '\0';
  return std::strtod(text, nullptr);
}

OrderedJson CountOrNull(int count) { return count < 0 ? OrderedJson(nullptr) : OrderedJson(count); }

template <typename List>
OrderedJson ListOrNull(const List& list) {
  return list.empty() ? OrderedJson(nullptr) : OrderedJson(list);
}

OrderedJson SamplingJson(const GenerateRequest& request, int max_tokens) {
  const SamplingParams& sampling = request.sampling;
  OrderedJson bias = nullptr;
  for (const auto& [id, value] : sampling.logit_bias) bias[std::to_string(id)] = FloatJson(value);
  return OrderedJson{{"n", request.n},
                     {"max_tokens", max_tokens},
                     {"min_tokens", request.min_tokens},
                     {"temperature", FloatJson(sampling.temperature)},
                     {"top_p", FloatJson(sampling.top_p)},
                     {"top_k", sampling.top_k},
                     {"min_p", FloatJson(sampling.min_p)},
                     {"presence_penalty", FloatJson(sampling.presence_penalty)},
                     {"frequency_penalty", FloatJson(sampling.frequency_penalty)},
                     {"repetition_penalty", FloatJson(sampling.repetition_penalty)},
                     {"logit_bias", std::move(bias)},
                     {"seed", sampling.seed},
                     {"stop", ListOrNull(request.stop)},
                     {"stop_token_ids", ListOrNull(request.stop_token_ids)},
                     {"include_stop_str_in_output", request.include_stop_str_in_output},
                     {"ignore_eos", request.ignore_eos},
                     {"skip_special_tokens", request.skip_special_tokens},
                     {"allowed_token_ids", ListOrNull(request.allowed_token_ids)},
                     {"bad_words", ListOrNull(request.bad_words)},
                     {"structured_outputs",
                      request.grammar ? OrderedJson::parse(StructuredOutputsText(*request.grammar))
                                      : OrderedJson(nullptr)},
                     {"logprobs", CountOrNull(sampling.num_logprobs)},
                     {"prompt_logprobs", CountOrNull(request.prompt_logprobs)}};
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

std::string RenderBody(const RenderedPrompt& prompt, const GenerateRequest& request) {
  return Dump(
      OrderedJson{{"request_id", prompt.request_id},
                  {"model", prompt.model},
                  {"prompt", prompt.text},
                  {"token_ids", prompt.token_ids},
                  {"sampling_params", SamplingJson(request, prompt.max_tokens)},
                  {"cache_salt", request.cache_salt.empty() ? OrderedJson(nullptr)
                                                            : OrderedJson(request.cache_salt)},
                  {"priority", request.priority}});
}

Result<std::string> TokenizerInfoBody(const std::string& model_dir) {
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
  OrderedJson info;
  info["tokenizer_class"] = Member(config, "tokenizer_class");
  for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"})
    info[name] = TokenText(config, name);
  for (const char* name : {"add_bos_token", "add_eos_token", "padding_side", "truncation_side"})
    info[name] = Member(config, name);
  info["model_max_length"] = LengthJson(config);
  info["chat_template"] = jinja->empty() ? Member(config, "chat_template") : OrderedJson(*jinja);
  return Dump(info);
}

}  // namespace diffserve
