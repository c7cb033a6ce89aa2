// SPDX-License-Identifier: Apache-2.0
#include "server/api/vllm/encoder.h"

#include <iterator>
#include <utility>

#include "kernels/process/check.h"
#include "server/api/reply/reply_members.h"

namespace diffserve {
TokenResponse::TokenResponse(const AnswerRequest& request, const Identity& identity,
                             const TokenTexts& texts)
    : stream_(request.stream),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage),
      logprobs_(request.logprobs),
      logprob_form_{texts, request.generate.sampling.num_logprobs,
                    request.generate.sampling.prompt_logprobs, texts.are_missing},
      choices_(static_cast<size_t>(request.generate.n)) {
  JsonWriter(&head_)
      .Add("request_id", identity.request_id)
      .Add("model", identity.model)
      .Add("created", identity.created);
}

void TokenResponse::OnStarted(ResponseStarted event) {
  prompt_opening_tokens_ = event.prompts.front().opening_tokens;
}

void TokenResponse::OnPromptLogprobs(ResponsePromptLogprobs event, AnswerState* /*answer*/) {
  prompt_scores_ = std::move(event.tokens);
}

void TokenResponse::OnDelta(ResponseDelta event, AnswerState* answer) {
  const auto index = static_cast<size_t>(event.choice);
  DS_CHECK(index < choices_.size(), "an event names an unknown choice");
  Choice& choice = choices_[index];
  choice.finish = event.finish;
  if (!stream_) {
    choice.opening_tokens += event.opening_tokens;
    std::move(event.tokens.begin(), event.tokens.end(), std::back_inserter(choice.tokens));
    return;
  }
  if (event.tokens.empty() && event.finish == FinishReason::kNone) return;  // only text
  choice.tokens = std::move(event.tokens);
  choice.opening_tokens = event.opening_tokens;
  answer->started = true;
  answer->AddEvent("", [&](JsonWriter& json) {
    json.Members(head_).Key("choices").Begin('[');
    AddChoice(index, json);
    json.End(']');
    if (!std::exchange(prompt_sent_, true) && logprob_form_.num_prompt_top >= 0)
      AddPromptLogprobs(json);
    if (!continuous_usage_) return void(json.Add("usage", nullptr));
    BeginOpenAiUsage(answer->usage, /*with_cached=*/false, &json);
    json.End('}');
  });
}

void TokenResponse::OnDone(AnswerState* answer) {
  if (!answer->status.ok()) {
    if (answer->started) answer->AddEvent("", OpenAiErrorBody(answer->status));
    return;
  }
  if (!stream_) return AddBody(answer->usage, JsonWriter(&answer->pieces));
  answer->started = true;
  if (include_usage_) {
    answer->AddEvent("", [&](JsonWriter& json) {
      json.Members(head_).Key("choices").Begin('[').End(']');
      BeginOpenAiUsage(answer->usage, /*with_cached=*/true, &json);
      json.End('}');
    });
  }
  answer->AddEvent("", "[DONE]");
}

void TokenResponse::AddBody(const Usage& usage, JsonWriter json) const {
  json.Begin('{').Members(head_).Key("choices");
  json.List(choices_.size(), [this](size_t i, JsonWriter& item) { AddChoice(i, item); });
  BeginOpenAiUsage(usage, /*with_cached=*/true, &json);
  json.End('}');
  if (logprob_form_.num_prompt_top >= 0)
    AddPromptLogprobs(json);
  else
    json.Add("prompt_logprobs", nullptr);
  json.End('}');
}

void TokenResponse::AddChoice(size_t index, JsonWriter& json) const {
  const Choice& choice = choices_[index];
  json.Begin('{').Add("index", index).Key("token_ids");
  json.List(choice.tokens.size(),
            [&choice](size_t i, JsonWriter& item) { item.Value(choice.tokens[i].token); });
  json.Key("logprobs");
  if (logprobs_) {
    json.Begin('{').Key("content");
    WriteChatLogprobs({choice.tokens, choice.opening_tokens}, logprob_form_, &json);
    json.End('}');
  } else {
    json.Value(nullptr);
  }
  const bool ends = choice.finish != FinishReason::kNone;
  json.Add("finish_reason", ends ? OpenAiNameOf(choice.finish) : nullptr).End('}');
}

void TokenResponse::AddPromptLogprobs(JsonWriter& json) const {
  json.Key("prompt_logprobs");
  WritePromptLogprobs(prompt_scores_, prompt_opening_tokens_, logprob_form_, &json);
}

}  // namespace diffserve
