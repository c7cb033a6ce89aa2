// SPDX-License-Identifier: Apache-2.0
#include "engine/text/responses.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/process/check.h"
#include "kernels/process/log.h"

namespace diffserve {
struct Responses::Choice {
  Choice(const Tokenizer& tokenizer, const TokenizedRequest& tokenized,
         std::span<const int32_t> prompt)
      : detokenizer(tokenizer, tokenized.skip_special_tokens, prompt),
        stop(tokenized.stop, tokenized.include_stop_in_output) {}

  RequestId request = 0;
  Detokenizer detokenizer;
  StopMatcher stop;
  int64_t num_tokens = 0;     // generated tokens, including the one that ended it
  int64_t cached_tokens = 0;  // prompt tokens from the cache
  int64_t cached_sent = 0;    // of these, those that the stream has been sent
  int64_t loaded_tokens = 0;  // of these, from its second tier
  PredictionUse prediction;
};

struct Responses::Response {
  OpenedResponse opened;
  // Set by Submit; its prompts and continuations have been moved out.
  TokenizedRequest tokenized;
  std::optional<ResponseStarted> started;  // sent with the engine's first event
  bool logprobs = false;
  int min_tokens = 0;  // stop strings are ignored before this many tokens
  size_t choices_per_prompt = 1;
  std::vector<bool> waits_for_scores;  // [prompts]
  std::vector<TokenEvent> held;        // events of choices that wait for their prompt's scores, in
                                       // order
  std::vector<Choice> choices;         // those that the engine accepted
  size_t num_running = 0;
  bool cancelled = false;  // a choice ended as cancelled
  Usage usage;
};

Responses::Responses(const Tokenizer& tokenizer, Callbacks callbacks)
    : tokenizer_(tokenizer), callbacks_(std::move(callbacks)) {}

Responses::~Responses() = default;

void Responses::Open(OpenedResponse opened) {
  std::unique_ptr<Response>& response = responses_[opened.id];
  DS_CHECK(response == nullptr, "a response id is used once");
  if (opened.deadline != TimePoint::max()) deadlines_.emplace(opened.deadline, opened.id);
  response = std::make_unique<Response>();
  response->opened = std::move(opened);
}

void Responses::Submit(ResponseId id, TokenizedRequest tokenized) {
  const auto found = responses_.find(id);
  if (found != responses_.end()) SubmitTo(*found->second, std::move(tokenized));
}

void Responses::SubmitTo(Response& response, TokenizedRequest tokenized) {
  std::vector<Request> continuations = std::move(tokenized.continuations);
  ResponseStarted started{std::move(tokenized.prompts)};
  DS_CHECK(!started.prompts.empty() && continuations.size() % started.prompts.size() == 0,
           "each prompt has as many continuations");
  for (const PromptInfo& prompt : started.prompts)
    response.usage.prompt_tokens += static_cast<int64_t>(prompt.token_ids.size());
  response.choices_per_prompt = continuations.size() / started.prompts.size();
  response.tokenized = std::move(tokenized);
  response.logprobs = continuations.front().sampling.num_logprobs >= 0;
  response.min_tokens = continuations.front().sampling.min_tokens;
  response.waits_for_scores.assign(started.prompts.size(),
                                   continuations.front().sampling.prompt_logprobs >= 0);
  response.started = std::move(started);
  for (Request& request : continuations) {
    const RequestId request_id = request.id = ++last_request_;
    // Registered before the engine has it, because End cancels the registered ones.
    choices_[request_id] = {&response, response.choices.size()};
    response.choices.emplace_back(tokenizer_, response.tokenized, request.prompt.ids()).request =
        request_id;
    Status status = callbacks_.submit(std::move(request));
    if (!status.ok()) {
      choices_.erase(request_id);
      response.choices.pop_back();
      return End(response, std::move(status));
    }
    ++response.num_running;
  }
}

void Responses::Take(TokenEvent event) {
  const auto found = choices_.find(event.request);
  if (found == choices_.end()) return;
  TakeFor(*found->second.first, found->second.second, event);
}

void Responses::TakeFor(Response& response, size_t index, TokenEvent& event) {
  const size_t prompt = index / response.choices_per_prompt;
  const bool fails = event.finish == FinishReason::kError;
  if (response.started && !fails)
    response.opened.stream->Push(*std::exchange(response.started, std::nullopt));
  if (response.waits_for_scores[prompt] && !fails) {
    if (index % response.choices_per_prompt != 0) {
      response.held.push_back(std::move(event));
      return;
    }
    response.waits_for_scores[prompt] = false;
    return TakeScores(response, index, event);
  }
  Choice& choice = response.choices[index];
  choice.cached_tokens = std::max<int64_t>(choice.cached_tokens, event.cached_tokens);
  choice.loaded_tokens = std::max<int64_t>(choice.loaded_tokens, event.loaded_tokens);
  choice.prediction.accepted = std::max(choice.prediction.accepted, event.prediction.accepted);
  choice.prediction.rejected = std::max(choice.prediction.rejected, event.prediction.rejected);
  if (event.finish != FinishReason::kNone) {
    // The engine has ended it, so it must not be cancelled.
    choices_.erase(event.request);
    --response.num_running;
  }
  if (event.finish == FinishReason::kLength && !event.error.ok()) {
    Log(LogLevel::kWarning, "answer_cut_by_form",
        {{"request", response.opened.request_id},
         {"choice", std::to_string(index)},
         {"tokens", std::to_string(choice.num_tokens + static_cast<int>(event.tokens.size()))},
         {"reason", event.error.message()}});
  }
  if (fails) {
    return End(response,
               event.error.ok() ? Status(StatusCode::kInternal, "the engine failed") : event.error);
  }
  TakeText(response, choice, event);
}

// Handles the first event of the continuation that scores its prompt, then the events that waited
// for it. For a prompt of one token, empty scores are sent: an answer lists that token all the
// same.
void Responses::TakeScores(Response& response, size_t first, TokenEvent& event) {
  if (!event.prompt_logprobs.empty() || event.finish != FinishReason::kCancelled) {
    const auto scores = std::make_shared<const std::vector<SampleResult>>(
        std::move(event.prompt_logprobs));
    const auto n = static_cast<int>(response.choices_per_prompt);
    for (int i = 0; i < n; ++i)
      response.opened.stream->Push(ResponsePromptLogprobs{static_cast<int>(first) + i, scores, n});
  }
  std::vector<TokenEvent> events = std::exchange(response.held, {});
  events.insert(events.begin(), std::move(event));
  for (TokenEvent& each : events) Take(std::move(each));
}

void Responses::TakeText(Response& response, Choice& choice, const TokenEvent& event) {
  const int index = static_cast<int>(&choice - response.choices.data());
  bool taken = true;
  ResponseDelta delta = Delta(event, response, choice);
  delta.choice = index;
  delta.times = event.times;
  response.cancelled |= delta.finish == FinishReason::kCancelled;
  if (delta.finish != FinishReason::kNone && choices_.erase(choice.request) > 0) {
    --response.num_running;
    callbacks_.cancel(choice.request, FinishReason::kStop);
  }
  const bool empty = delta.text.empty() && delta.tokens.empty() &&
                     delta.finish == FinishReason::kNone;
  if (taken && !empty) {
    if (static_cast<size_t>(index) % response.choices_per_prompt == 0)
      delta.cached_tokens = choice.cached_tokens -
                            std::exchange(choice.cached_sent, choice.cached_tokens);
    taken = response.opened.stream->Push(std::move(delta));
  }
  if (!taken) {
    End(response, Status(StatusCode::kResourceExhausted,
                         "the reader is too slow: the response's queue is full"));
  } else if (response.num_running == 0) {
    End(response, response.cancelled ? Status(StatusCode::kCancelled, "the request was cancelled")
                                     : Status());
  }
}

void Responses::End(ResponseId id, Status status) {
  const auto found = responses_.find(id);
  if (found != responses_.end()) End(*found->second, std::move(status));
}

// A complete answer, for the statistics.
void Responses::Count(const Response& response) {
  const std::span<const Choice> choices = response.choices;
  const size_t n = response.choices_per_prompt;
  for (size_t first = 0; first < choices.size(); first += n) {
    int64_t longest = 0;
    for (const Choice& choice : choices.subspan(first, n))
      longest = std::max(longest, choice.num_tokens);
    stats_.choices.Observe(static_cast<double>(n));
    stats_.longest_generation_tokens.Observe(static_cast<double>(longest));
  }
}

// Ends a response; every ending comes through here. Cancels its running continuations, pushes the
// last event, and forgets the response.
void Responses::End(Response& response, Status status) {
  Usage& usage = response.usage;
  for (size_t i = 0; i < response.choices.size(); ++i) {
    const Choice& choice = response.choices[i];
    usage.completion_tokens += choice.num_tokens;
    usage.prediction.accepted += choice.prediction.accepted;
    usage.prediction.rejected += choice.prediction.rejected;
    if (i % response.choices_per_prompt == 0) {
      usage.cached_tokens += choice.cached_tokens;
      usage.loaded_tokens += choice.loaded_tokens;
    }
    if (choices_.erase(choice.request) > 0)
      callbacks_.cancel(choice.request, FinishReason::kCancelled);
  }
  if (status.ok()) Count(response);
  const OpenedResponse& opened = response.opened;
  deadlines_.erase({opened.deadline, opened.id});
  callbacks_.ended(opened);  // before the last event, so that a client that has seen the end can
                             // reuse the name
  opened.stream->Push(ResponseDone{std::move(status), usage});
  responses_.erase(opened.id);
}

void Responses::EndOverdue(TimePoint now) {
  while (next_deadline() <= now) {
    End(deadlines_.begin()->second,
        Status(StatusCode::kDeadlineExceeded, "the request's deadline has passed"));
  }
}

void Responses::EndAll(const Status& status) {
  while (!responses_.empty()) End(*responses_.begin()->second, status);
}

TimePoint Responses::next_deadline() const {
  return deadlines_.empty() ? TimePoint::max() : deadlines_.begin()->first;
}

ResponseDelta Responses::Delta(const TokenEvent& event, const Response& response,
                               Choice& choice) const {
  const TokenizedRequest& asked = response.tokenized;
  ResponseDelta delta;
  const auto show = [&](const std::string& text) {
    StopMatcher::Piece piece = choice.stop.Push(text, choice.num_tokens > response.min_tokens);
    delta.text += piece.text;
    if (!piece.matched) return true;
    delta.finish = FinishReason::kStop;
    delta.stop_reason = asked.stop[*piece.matched];
    return false;
  };
  // The token that ended the text is not part of it, unless requested.
  const bool show_last = event.finish != FinishReason::kStop || asked.include_stop_in_output ||
                         (event.stop_token < 0 && !asked.skip_special_tokens);
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    const int32_t id = event.tokens[i];
    ++choice.num_tokens;
    delta.opening_tokens += choice.detokenizer.at_start() ? 1 : 0;
    const bool scored = response.logprobs && i < event.logprobs.size();
    delta.tokens.push_back(scored ? event.logprobs[i] : SampleResult{.token = id});
    if (i + 1 == event.tokens.size() && !show_last) break;
    if (!show(choice.detokenizer.Push(id))) return delta;
  }
  if (event.finish == FinishReason::kNone) return delta;
  if (!show(choice.detokenizer.Finish())) return delta;
  delta.text += choice.stop.Finish();
  delta.finish = event.finish;
  if (event.finish == FinishReason::kStop && event.stop_token >= 0)
    delta.stop_reason = event.stop_token;
  return delta;
}

}  // namespace diffserve
