// SPDX-License-Identifier: Apache-2.0
#include "server/serving/answer/answer_price.h"

#include <algorithm>
#include <string>

#include "kernels/base/refusal.h"
#include "models/diagnostics/attention_capture.h"
#include "models/diagnostics/hidden_state_pool.h"

namespace diffserve {
namespace {

constexpr size_t kChoiceBytes = 3072;  // of a continuation: its request, sequence, detokenizer and
                                       // choice, without the lists that a request has
constexpr size_t kGrammarBytes = size_t{1} << 20;  // of a continuation's own constraint, as it
                                                   // grows
constexpr size_t kTextBytesPerToken = 16;
constexpr size_t kSequenceBytesPerToken = 2 * sizeof(int32_t);
constexpr size_t kMessageBytes = 128;     // of one log-probability in a gRPC message
constexpr size_t kTemplateTokens = 1024;  // that a chat template or a normaliser adds

size_t Count(int count) { return static_cast<size_t>(std::max(count, 0)); }

// Bytes of a token with N alternatives, in a vector that has grown to hold it.
size_t ScoredBytes(int alternatives) {
  return 2 * sizeof(SampleResult) + HeapBytes(Count(alternatives) * sizeof(TokenLogprob));
}

size_t TokenBytesOf(const GenerateRequest& request) {
  const int alternatives = request.sampling.num_logprobs;
  switch (request.holds) {
    case AnswerHolds::kText:
      return kTextBytesPerToken + kSequenceBytesPerToken;
    case AnswerHolds::kTokens:
      return kTextBytesPerToken + kSequenceBytesPerToken + ScoredBytes(alternatives);
    case AnswerHolds::kEvents:
      break;
  }
  return sizeof(ResponseEvent) + sizeof(size_t) + HeapBytes(kTextBytesPerToken) +
         HeapBytes(sizeof(SampleResult)) + HeapBytes(Count(alternatives) * sizeof(TokenLogprob));
}

size_t ChoiceBytes(const GenerateRequest& request) {
  size_t stop_bytes = 0;
  for (const std::string& stop : request.stop) stop_bytes += sizeof(stop) + HeapBytes(stop.size());
  const size_t grammars = (request.grammar ? 1 : 0) + (request.call_grammar ? 1 : 0);
  return kChoiceBytes + grammars * kGrammarBytes + 3 * stop_bytes +
         2 * HeapBytes(request.sampling.logit_bias.size() * sizeof(std::pair<int32_t, float>)) +
         2 * HeapBytes(request.sampling.stop_token_ids.size() * sizeof(int32_t));
}

std::string MiB(size_t bytes) {
  const size_t tenths = (bytes * 10 + (1 << 20) - 1) >> 20;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MiB";
}

// The field that the answer's size comes from.
const char* ParamOf(const AnswerPrice& price, const GenerateRequest& request) {
  if (request.capture != nullptr) return "layers";
  if (price.output > price.prompts)
    return request.sampling.num_logprobs > 0 ? request.names.logprobs : request.names.max_tokens;
  return request.sampling.prompt_logprobs >= 0 ? "prompt_logprobs" : request.names.prompt;
}

std::string Asked(const GenerateRequest& request) {
  if (request.capture != nullptr) {
    const AttentionCapture::Selection& selection = request.capture->selection();
    return "maps of " + std::to_string(selection.layers.size()) + " layers and " +
           std::to_string(selection.positions.size()) + " positions over " +
           std::to_string(request.capture->last() + 1) + " slots";
  }
  std::string text = std::to_string(request.prompts.size()) + " prompts with n " +
                     std::to_string(request.n);
  if (!request.pools.empty() && request.pools.front()->keeps_each())
    return text + " and the hidden state of each token";
  if (request.max_tokens)
    text += std::string(", ") + request.names.max_tokens + " " +
            std::to_string(*request.max_tokens);
  if (request.sampling.num_logprobs >= 0)
    text += std::string(", ") + request.names.logprobs + " " +
            std::to_string(request.sampling.num_logprobs);
  if (request.sampling.prompt_logprobs >= 0)
    text += ", prompt_logprobs " + std::to_string(request.sampling.prompt_logprobs);
  return text;
}

}  // namespace

AnswerPrice PriceOf(const GenerateRequest& request, std::span<const PromptSize> prompts,
                    size_t context, size_t max_stream_bytes) {
  const size_t n = Count(request.n);
  const bool scored = request.sampling.prompt_logprobs >= 0;
  AnswerPrice price;
  size_t longest = 0;
  for (const PromptSize& prompt : prompts) {
    longest = std::max(longest, prompt.tokens);
    price.prompts += sizeof(PromptInfo) + 2 * HeapBytes(prompt.tokens * sizeof(int32_t)) +
                     2 * HeapBytes(prompt.text_bytes) + n * ChoiceBytes(request);
    if (scored) price.prompts += prompt.tokens * ScoredBytes(request.sampling.prompt_logprobs);
  }
  // The proposer of each continuation has a copy.
  const size_t predicted = std::min(request.prediction.size(), context) * sizeof(int32_t);
  price.prompts += (1 + prompts.size() * n) * HeapBytes(predicted);
  price.prompts += request.capture_bytes;
  for (size_t i = 0; i < request.pools.size(); ++i)
    price.prompts += request.pools[i]->bytes(prompts[i].tokens);
  const bool events = request.holds == AnswerHolds::kEvents;
  if (scored && events)
    price.prompts += longest * (Count(request.sampling.prompt_logprobs) + 1) * kMessageBytes;
  size_t tokens = request.max_tokens               ? Count(*request.max_tokens)
                  : request.max_tokens_default > 0 ? Count(request.max_tokens_default)
                                                   : context;
  tokens = std::min(tokens, context);
  price.output_per_token = prompts.size() * n * TokenBytesOf(request);
  price.output = tokens * price.output_per_token;
  if (events && price.output > max_stream_bytes) {
    price.output = max_stream_bytes;
    price.output_per_token = 0;
  }
  return price;
}

PromptSize BoundOf(const Prompt& prompt, const GenerateRequest& request, size_t context) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt))
    return {std::min(ids->size(), context),
            request.want_prompt_text ? ids->size() * kTextBytesPerToken : 0};
  const auto* text = std::get_if<std::string>(&prompt);
  const size_t bytes = text != nullptr ? text->size() : std::get<Conversation>(prompt).TextBytes();
  return {std::min(bytes + kTemplateTokens, context), request.want_prompt_text ? bytes : 0};
}

Status FitAnswer(AnswerPrice& price, size_t max_bytes, GenerateRequest& request) {
  if (price.total() <= max_bytes) return {};
  if (!request.max_tokens && price.output_per_token > 0 && price.prompts < max_bytes) {
    const size_t tokens = (max_bytes - price.prompts) / price.output_per_token;
    if (tokens > 0) {
      request.max_tokens_default = static_cast<int>(tokens);
      price.output = tokens * price.output_per_token;
      return {};
    }
  }
  return NotAllowed(
      "the answer could take " + MiB(price.total()) + " of memory (" + Asked(request) + ")",
      "at most " + MiB(max_bytes), ParamOf(price, request));
}

bool AnswerBudget::State::Add(size_t bytes) {
  std::lock_guard lock(mutex);
  if (bytes > max_bytes - taken) return false;
  taken += bytes;
  return true;
}

void AnswerBudget::State::Free(size_t bytes) {
  {
    std::lock_guard lock(mutex);
    taken -= bytes;
    if (taken > 0) return;
  }
  freed.notify_all();
}

size_t AnswerBudget::taken_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->taken;
}

void AnswerBudget::WaitUntilFree(std::chrono::steady_clock::time_point deadline) const {
  std::unique_lock lock(state_->mutex);
  state_->freed.wait_until(lock, deadline, [this] { return state_->taken == 0; });
}

std::shared_ptr<AnswerBudget::Share> AnswerBudget::Take(size_t bytes) const {
  auto share = std::make_shared<Share>(state_);
  return share->Resize(bytes) ? share : nullptr;
}

bool AnswerBudget::Share::Resize(size_t bytes) {
  if (bytes > bytes_ && !state_->Add(bytes - bytes_)) return false;
  if (bytes < bytes_) state_->Free(bytes_ - bytes);
  bytes_ = bytes;
  return true;
}

}  // namespace diffserve
