// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/diffserve/answer_messages.h"

#include <ctime>
#include <string_view>
#include <utility>
#include <variant>

#include "diffserve/v1/inference.pb.h"
#include "server/api/reply/answer_splitter.h"

namespace diffserve {
namespace {

// How to show tokens at one position of a text.
struct TokenPosition {
  const Tokenizer& tokenizer;
  bool opens_text = false;
};

void Fill(int32_t id, float logprob, TokenPosition place, v1::TokenLogprob& out) {
  out.set_id(id);
  out.set_token(place.opens_text ? place.tokenizer.FirstTokenBytes(id)
                                 : place.tokenizer.TokenBytes(id));
  out.set_logprob(logprob);
}

void Fill(const SampleResult& in, TokenPosition place, v1::TokenOutput& out) {
  Fill(in.token, in.logprob, place, *out.mutable_chosen());
  for (const TokenLogprob& other : in.top_logprobs)
    Fill(other.token, other.logprob, place, *out.add_top());
}

v1::FinishReason ToProto(FinishReason reason, bool calls) {
  switch (reason) {
    case FinishReason::kStop:
      return calls ? v1::FINISH_REASON_TOOL_CALLS : v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kNone:
    case FinishReason::kError:
      break;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void Fill(AnswerMessage message, const ChatForm& form, v1::Delta& out) {
  out.set_text(std::move(message.content));
  out.set_reasoning(std::move(message.reasoning));
  for (AnswerCall& call : message.calls) {
    v1::ToolCallDelta& delta = *out.add_tool_calls();
    delta.set_index(call.index);
    if (call.opens) delta.set_id(CallIdOf(form, out.choice(), call.index));
    delta.set_name(std::move(call.name));
    delta.set_arguments(std::move(call.arguments));
  }
}

}  // namespace

AnswerMessages::AnswerMessages(const AnswerRequest& request, std::string request_id,
                               const Tokenizer& tokenizer)
    : n_(request.generate.n),
      logprobs_(request.logprobs),
      hides_eos_(request.hides_eos),
      form_{request.answer, request.include_reasoning, std::move(request_id), std::time(nullptr)},
      tokenizer_(tokenizer) {}

void AnswerMessages::Append(const ResponseEvent& event, Messages* out) {
  std::visit([&](const auto& alternative) { AppendOne(alternative, out); }, event);
}

void AnswerMessages::AppendOne(const ResponseStarted& started, Messages* out) {
  for (int i = 0; i < n_; ++i) choices_.emplace_back(form_, started.prompts.front());
  v1::PromptStart& start = *out->emplace_back().mutable_start();
  start.set_request_id(form_.response_id);
  for (const PromptInfo& prompt : started.prompts)
    start.mutable_token_ids()->Add(prompt.token_ids.begin(), prompt.token_ids.end());
  prompt_opening_tokens_ = started.prompts.front().opening_tokens;
}

void AnswerMessages::AppendOne(const ResponsePromptLogprobs& scores, Messages* out) {
  v1::PromptLogprobs& message = *out->emplace_back().mutable_prompt_logprobs();
  message.set_choice(scores.choice);
  message.add_tokens();  // the first has none
  for (size_t i = 0; i < scores.tokens->size(); ++i) {
    const TokenPosition place{tokenizer_, i + 1 < prompt_opening_tokens_};
    Fill((*scores.tokens)[i], place, *message.add_tokens());
  }
}

void AnswerMessages::AppendOne(const ResponseDelta& delta, Messages* out) {
  ChatText& choice = choices_[static_cast<size_t>(delta.choice)];
  const bool ends = delta.finish != FinishReason::kNone;
  const std::string_view text = ShownText(delta, hides_eos_,
                                          [this](int32_t id) { return tokenizer_.TokenBytes(id); });
  AnswerMessage read = choice.Read(delta, text);
  if (!read.empty() || !delta.tokens.empty()) {
    v1::Delta& message = *out->emplace_back().mutable_delta();
    message.set_choice(delta.choice);
    Fill(std::move(read), form_, message);
    for (size_t i = 0; i < delta.tokens.size(); ++i) {
      message.add_token_ids(delta.tokens[i].token);
      if (!logprobs_) continue;
      Fill(delta.tokens[i], {tokenizer_, i < delta.opening_tokens}, *message.add_logprobs());
    }
  }
  if (!ends) return;
  v1::Finish& finish = *out->emplace_back().mutable_finish();
  finish.set_choice(delta.choice);
  finish.set_reason(ToProto(delta.finish, choice.calls_tools()));
  if (const auto* stop = std::get_if<std::string>(&delta.stop_reason))
    finish.set_stop_string(*stop);
  if (const auto* id = std::get_if<int32_t>(&delta.stop_reason)) finish.set_stop_token_id(*id);
}

void AnswerMessages::AppendOne(const ResponseDone& done, Messages* out) {
  if (!done.status.ok()) return;
  v1::Usage& usage = *out->emplace_back().mutable_usage();
  usage.set_prompt_tokens(done.usage.prompt_tokens);
  usage.set_completion_tokens(done.usage.completion_tokens);
  usage.set_cached_tokens(done.usage.cached_tokens);
  int64_t reasoning_tokens = 0;
  for (const ChatText& choice : choices_) reasoning_tokens += choice.reasoning_tokens();
  usage.set_reasoning_tokens(reasoning_tokens);
}

}  // namespace diffserve
