// SPDX-License-Identifier: Apache-2.0
#include "server/api/vllm/encoder.h"

#include <iterator>
#include <utility>

#include "kernels/base/check.h"
#include "server/api/json/json.h"
#include "server/api/openai/encoder.h"

namespace diffserve {
namespace {

std::string UsageText(int64_t prompt_tokens, int64_t completion_tokens) {
  return "\"prompt_tokens\":" + std::to_string(prompt_tokens) +
         ",\"completion_tokens\":" + std::to_string(completion_tokens) +
         ",\"total_tokens\":" + std::to_string(prompt_tokens + completion_tokens);
}

std::string UsageText(const Usage& usage) {
  return "{" + UsageText(usage.prompt_tokens, usage.completion_tokens) +
         ",\"prompt_tokens_details\":{\"cached_tokens\":" + std::to_string(usage.cached_tokens) +
         "}}";
}

std::string HeadOf(const TokenResponse::Identity& identity) {
  return "{\"request_id\":" + JsonQuoted(identity.request_id) +
         ",\"model\":" + JsonQuoted(identity.model) +
         ",\"created\":" + std::to_string(identity.created) + ",\"choices\":[";
}

}  // namespace

TokenResponse::TokenResponse(const OpenAiRequest& request, const Identity& identity,
                             TokenTexts texts)
    : stream_(request.stream),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage),
      logprobs_(request.logprobs),
      num_logprobs_(request.generate.sampling.num_logprobs),
      prompt_logprobs_(request.prompt_logprobs),
      texts_(std::move(texts)),
      head_(HeadOf(identity)),
      choices_(static_cast<size_t>(request.generate.n)) {}

void TokenResponse::Take(ResponseEvent event) {
  DS_CHECK(written(), "an event is written before the next one comes");
  if (done_) return;
  if (auto* started = std::get_if<ResponseStarted>(&event))
    OnStarted(started->prompts.front());
  else if (auto* scores = std::get_if<ResponsePromptLogprobs>(&event))
    prompt_scores_ = std::move(scores->tokens);
  else if (auto* delta = std::get_if<ResponseDelta>(&event))
    OnDelta(std::move(*delta));
  else
    OnDone(std::move(std::get<ResponseDone>(event)));
}

bool TokenResponse::Write(size_t enough, std::string* out) {
  pieces_.Write(enough, out);
  return written();
}

void TokenResponse::OnStarted(const PromptInfo& prompt) {
  prompt_tokens_ = static_cast<int64_t>(prompt.token_ids.size());
  prompt_opening_tokens_ = prompt.opening_tokens;
}

void TokenResponse::OnDelta(ResponseDelta event) {
  DS_CHECK(event.choice >= 0 && static_cast<size_t>(event.choice) < choices_.size(),
           "an event names an unknown choice");
  Choice& choice = choices_[static_cast<size_t>(event.choice)];
  num_tokens_ += static_cast<int64_t>(event.tokens.size());
  choice.finish = event.finish;
  if (!stream_) {
    choice.opening_tokens += event.opening_tokens;
    std::move(event.tokens.begin(), event.tokens.end(), std::back_inserter(choice.tokens));
    return;
  }
  if (event.tokens.empty() && event.finish == FinishReason::kNone) return;  // only text
  choice.tokens = std::move(event.tokens);
  choice.opening_tokens = event.opening_tokens;
  started_ = true;
  AddChunk(event.choice);
}

void TokenResponse::OnDone(ResponseDone event) {
  done_ = true;
  status_ = std::move(event.status);
  usage_ = event.usage;
  if (!status_.ok()) {
    if (started_) pieces_.Add("data: " + OpenAiErrorBody(status_) + "\n\n");
    return;
  }
  if (!stream_) return AddBody();
  started_ = true;
  if (include_usage_) pieces_.Add("data: " + head_ + "],\"usage\":" + UsageText(usage_) + "}\n\n");
  pieces_.Add("data: [DONE]\n\n");
}

std::string TokenResponse::RunningUsage() const {
  return "{" + UsageText(prompt_tokens_, num_tokens_) + "}";
}

void TokenResponse::AddChunk(int index) {
  pieces_.Add("data: " + head_);
  AddChoice(index, choices_[static_cast<size_t>(index)]);
  pieces_.Add("]");
  if (!std::exchange(prompt_told_, true) && prompt_logprobs_ >= 0) AddPromptLogprobs();
  if (continuous_usage_)
    pieces_.Add(",\"usage\":" + RunningUsage());
  else
    pieces_.Add(",\"usage\":null");
  pieces_.Add("}\n\n");
}

void TokenResponse::AddBody() {
  pieces_.Add(head_);
  pieces_.AddItems(choices_.size(), [this](size_t i, std::string* out) {
    if (i > 0) *out += ',';
    AddChoice(static_cast<int>(i), choices_[i]);
  });
  pieces_.Add("],\"usage\":" + UsageText(usage_));
  if (prompt_logprobs_ >= 0)
    AddPromptLogprobs();
  else
    pieces_.Add(",\"prompt_logprobs\":null");
  pieces_.Add("}");
}

void TokenResponse::AddChoice(int index, const Choice& choice) {
  const std::vector<SampleResult>& tokens = choice.tokens;
  pieces_.Add("{\"index\":" + std::to_string(index) + ",\"token_ids\":");
  pieces_.AddList(tokens.size(), [&tokens](size_t i, std::string* out) {
    *out += std::to_string(tokens[i].token);
  });
  pieces_.Add(",\"logprobs\":");
  if (logprobs_) {
    pieces_.Add("{\"content\":");
    pieces_.AddList(tokens.size(), [this, &choice](size_t i, std::string* out) {
      AppendChatLogprobs(choice.tokens[i], num_logprobs_, texts_.At(i < choice.opening_tokens),
                         out);
    });
    pieces_.Add("}");
  } else {
    pieces_.Add("null");
  }
  const bool ends = choice.finish != FinishReason::kNone;
  pieces_.Add(std::string(",\"finish_reason\":") +
              (ends ? JsonQuoted(OpenAiNameOf(choice.finish)) : "null") + "}");
}

// null for the first token.
void TokenResponse::AddPromptLogprobs() {
  pieces_.Add(",\"prompt_logprobs\":");
  pieces_.AddList(prompt_scores_->size() + 1, [this](size_t i, std::string* out) {
    if (i == 0)
      *out += "null";
    else
      AppendPromptLogprobs((*prompt_scores_)[i - 1], prompt_logprobs_,
                           texts_.At(i < prompt_opening_tokens_), out);
  });
}

}  // namespace diffserve
