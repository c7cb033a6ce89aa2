// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/render_body.h"

#include <charconv>
#include <cmath>
#include <string>

#include "server/api/fields/structured_fields.h"
#include "server/json/json_writer.h"
#include "server/serving/request/sampling_numbers.h"

namespace diffserve {
namespace {

// The shortest number that is read as the same float, without an exponent down to 0.0001.
std::string FloatText(float value) {
  const bool tiny = value != 0 && std::abs(value) < 1e-4f;
  char text[64];
  const auto form = tiny ? std::chars_format::scientific : std::chars_format::fixed;
  std::string number(text, std::to_chars(text, text + sizeof(text), value, form).ptr);
  if (!tiny && number.find('.') == number.npos) number += ".0";
  return number;
}

template <typename List>
void AddListOrNull(const char* name, const List& list, JsonWriter& json) {
  json.Key(name);
  list.empty() ? json.Value(nullptr) : json.Value(list);
}

void AddCountOrNull(const char* name, int count, JsonWriter& json) {
  json.Key(name);
  count < 0 ? json.Value(nullptr) : json.Value(count);
}

void AddSampling(const GenerateRequest& request, int max_tokens, JsonWriter& json) {
  const SamplingSpec& sampling = request.sampling;
  const auto add = [&json](const char* name, float value) {
    json.Key(name).Json(FloatText(value));
  };
  json.Key("sampling_params").Begin('{').Add("n", request.n).Add("max_tokens", max_tokens);
  json.Add("min_tokens", sampling.min_tokens);
  for (const SamplingNumber& number : kSamplingNumbers) add(number.name, sampling.*number.member);
  json.Add("top_k", sampling.top_k);
  json.Key("logit_bias");
  if (sampling.logit_bias.empty()) {
    json.Value(nullptr);
  } else {
    json.Begin('{');
    for (const auto& [id, value] : sampling.logit_bias) add(std::to_string(id).c_str(), value);
    json.End('}');
  }
  json.Add("seed", sampling.seed);
  AddListOrNull("stop", request.stop, json);
  AddListOrNull("stop_token_ids", sampling.stop_token_ids, json);
  json.Add("include_stop_str_in_output", request.include_stop_str_in_output);
  json.Add("ignore_eos", sampling.ignore_eos);
  json.Add("skip_special_tokens", request.skip_special_tokens);
  AddListOrNull("allowed_token_ids", request.allowed_token_ids, json);
  AddListOrNull("bad_words", request.bad_words, json);
  json.Key("structured_outputs");
  json.Json(request.grammar ? StructuredOutputsText(*request.grammar, request.whitespace) : "null");
  AddCountOrNull("logprobs", sampling.num_logprobs, json);
  AddCountOrNull("prompt_logprobs", sampling.prompt_logprobs, json);
  json.End('}');
}

}  // namespace

std::string RenderBody(const RenderedPrompt& prompt, const GenerateRequest& request) {
  return JsonObjectOf([&](JsonWriter& json) {
    json.Add("request_id", prompt.request_id).Add("model", prompt.model);
    json.Add("prompt", prompt.text).Add("token_ids", prompt.token_ids);
    AddSampling(request, prompt.max_tokens, json);
    AddListOrNull("cache_salt", request.cache_salt, json);
    json.Add("priority", request.priority);
  });
}

}  // namespace diffserve
