#include "engine/text/output_loop.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

namespace diffserve {
namespace {

struct Choice {
  Choice(const Tokenizer& tokenizer, const ResponseSpec& spec)
      : detokenizer(tokenizer, spec.skip_special_tokens),
        stop(spec.stop, spec.include_stop_in_output) {}

  Detokenizer detokenizer;
  StopMatcher stop;
  int64_t num_tokens = 0;     // generated, up to and including the one that ended it
  int64_t cached_tokens = 0;  // of its prompt
  bool ended = false;
};

struct Response {
  ResponseSpec spec;
  std::vector<Choice> choices;
  size_t num_running = 0;
  bool cancelled = false;  // a choice ended as cancelled
};

struct Abortion {
  RequestId request = 0;
  Status status;
};

using Message = std::variant<ResponseSpec, Abortion, TokenEvent>;

}  // namespace

struct OutputLoop::Impl {
  Impl(const Tokenizer& text_tokenizer, size_t capacity, CancelFunction cancel_request)
      : tokenizer(text_tokenizer), outbox(capacity), cancel(std::move(cancel_request)) {}

  void Put(Message message);
  void Run();
  void OnRegister(ResponseSpec spec);
  void OnAbort(const Abortion& abortion);
  void OnEvent(const TokenEvent& event);
  // Ends the response: what still runs is cancelled, ResponseDone is pushed.
  void End(Response& response, Status status);

  TokenText Text(int32_t id, float logprob) const {
    return {id, tokenizer.TokenBytes(id), logprob};
  }
  TokenOutput Output(const SampleResult& sample) const;
  ResponsePromptLogprobs PromptLogprobs(const TokenEvent& event, size_t choice) const;
  ResponseDelta Delta(const TokenEvent& event, const ResponseSpec& spec, Choice& choice) const;
  static Usage UsageOf(const Response& response);

  const Tokenizer& tokenizer;
  BoundedQueue<Message> outbox;
  CancelFunction cancel;  // output thread only
  std::atomic<uint64_t> num_waits = 0;

  // The output thread's own: continuation -> its response and choice, until the whole response has
  // ended.
  struct Place {
    std::shared_ptr<Response> response;
    size_t choice = 0;
  };
  std::unordered_map<RequestId, Place> live;
  std::thread thread;
};

void OutputLoop::Impl::Put(Message message) {
  if (outbox.TryPush(std::move(message))) return;
  num_waits.fetch_add(1, std::memory_order_relaxed);
  outbox.Push(std::move(message));
}

void OutputLoop::Impl::Run() {
  while (std::optional<Message> message = outbox.Pop()) {
    if (auto* event = std::get_if<TokenEvent>(&*message)) {
      OnEvent(*event);
    } else if (auto* spec = std::get_if<ResponseSpec>(&*message)) {
      OnRegister(std::move(*spec));
    } else {
      OnAbort(std::get<Abortion>(*message));
    }
  }
  cancel = nullptr;
  while (!live.empty()) {
    const std::shared_ptr<Response> response = live.begin()->second.response;
    End(*response, Status(StatusCode::kUnavailable, "the server has stopped"));
  }
}

void OutputLoop::Impl::OnRegister(ResponseSpec spec) {
  auto response = std::make_shared<Response>();
  response->spec = std::move(spec);
  response->num_running = response->spec.requests.size();
  for (size_t i = 0; i < response->num_running; ++i) {
    response->choices.emplace_back(tokenizer, response->spec);
    live[response->spec.requests[i]] = {response, i};
  }
}

void OutputLoop::Impl::OnAbort(const Abortion& abortion) {
  const auto place = live.find(abortion.request);
  if (place == live.end()) return;
  const std::shared_ptr<Response> response = place->second.response;
  End(*response, abortion.status);
}

void OutputLoop::Impl::OnEvent(const TokenEvent& event) {
  const auto found = live.find(event.request);
  if (found == live.end()) return;
  const Place place = found->second;
  Response& response = *place.response;
  Choice& choice = response.choices[place.choice];
  if (choice.ended) return;
  choice.cached_tokens = std::max<int64_t>(choice.cached_tokens, event.cached_tokens);
  if (event.finish != FinishReason::kNone) {
    // The engine has ended it: it is not to be cancelled.
    choice.ended = true;
    --response.num_running;
  }
  if (event.finish == FinishReason::kError) {
    End(response,
        event.error.ok() ? Status(StatusCode::kInternal, "the engine failed") : event.error);
    return;
  }

  bool taken = true;
  if (!event.prompt_logprobs.empty())
    taken = response.spec.stream->Push(PromptLogprobs(event, place.choice));
  ResponseDelta delta = Delta(event, response.spec, choice);
  delta.choice = static_cast<int>(place.choice);
  if (delta.finish == FinishReason::kCancelled) response.cancelled = true;
  if (delta.finish != FinishReason::kNone && !choice.ended) {
    choice.ended = true;
    --response.num_running;
    if (cancel) cancel(event.request, FinishReason::kStop);
  }
  const bool empty = delta.text.empty() && delta.tokens.empty() &&
                     delta.finish == FinishReason::kNone;
  if (taken && !empty) taken = response.spec.stream->Push(std::move(delta));
  if (!taken) {
    End(response, Status(StatusCode::kResourceExhausted,
                         "the reader is too slow: the response's queue is full"));
  } else if (response.num_running == 0) {
    End(response, response.cancelled ? Status(StatusCode::kCancelled, "the request was cancelled")
                                     : Status());
  }
}

void OutputLoop::Impl::End(Response& response, Status status) {
  for (size_t i = 0; i < response.choices.size(); ++i) {
    const RequestId request = response.spec.requests[i];
    live.erase(request);
    if (!response.choices[i].ended && cancel) cancel(request, FinishReason::kCancelled);
    response.choices[i].ended = true;
  }
  response.num_running = 0;
  response.spec.stream->Push(ResponseDone{std::move(status), UsageOf(response)});
}

Usage OutputLoop::Impl::UsageOf(const Response& response) {
  Usage usage;
  const auto per_prompt = static_cast<size_t>(std::max(response.spec.choices_per_prompt, 1));
  for (size_t i = 0; i < response.choices.size(); ++i) {
    usage.completion_tokens += response.choices[i].num_tokens;
    if (i % per_prompt != 0) continue;
    if (i < response.spec.prompt_tokens.size())
      usage.prompt_tokens += response.spec.prompt_tokens[i];
    usage.cached_tokens += response.choices[i].cached_tokens;
  }
  return usage;
}

TokenOutput OutputLoop::Impl::Output(const SampleResult& sample) const {
  TokenOutput output{Text(sample.token, sample.logprob), {}};
  output.top.reserve(sample.top_logprobs.size());
  for (const TokenLogprob& top : sample.top_logprobs)
    output.top.push_back(Text(top.token, top.logprob));
  return output;
}

ResponsePromptLogprobs OutputLoop::Impl::PromptLogprobs(const TokenEvent& event,
                                                        size_t choice) const {
  ResponsePromptLogprobs logprobs{static_cast<int>(choice), {}};
  logprobs.tokens.reserve(event.prompt_logprobs.size() + 1);
  logprobs.tokens.emplace_back(std::nullopt);  // nothing comes before the first token
  for (const SampleResult& sample : event.prompt_logprobs)
    logprobs.tokens.emplace_back(Output(sample));
  return logprobs;
}

ResponseDelta OutputLoop::Impl::Delta(const TokenEvent& event, const ResponseSpec& spec,
                                      Choice& choice) const {
  ResponseDelta delta;
  const auto show = [&](const std::string& text) {
    StopMatcher::Piece piece = choice.stop.Push(text, choice.num_tokens > spec.min_tokens);
    delta.text += piece.text;
    if (!piece.matched) return true;
    delta.finish = FinishReason::kStop;
    delta.stop_reason = spec.stop[*piece.matched];
    return false;
  };
  // The token that ended the text is not part of it, unless asked for.
  const bool show_last = event.finish != FinishReason::kStop || spec.include_stop_in_output ||
                         (event.stop_token < 0 && !spec.skip_special_tokens);
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    const int32_t id = event.tokens[i];
    ++choice.num_tokens;
    const bool scored = spec.logprobs && i < event.logprobs.size();
    delta.tokens.push_back(scored ? Output(event.logprobs[i]) : TokenOutput{Text(id, 0), {}});
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

OutputLoop::OutputLoop(const Tokenizer& tokenizer, size_t outbox_capacity, CancelFunction cancel)
    : impl_(std::make_unique<Impl>(tokenizer, outbox_capacity, std::move(cancel))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

OutputLoop::~OutputLoop() {
  impl_->outbox.Close();
  impl_->thread.join();
}

void OutputLoop::Register(ResponseSpec spec) { impl_->Put(std::move(spec)); }
void OutputLoop::Abort(RequestId request, Status status) {
  impl_->Put(Abortion{request, std::move(status)});
}
void OutputLoop::Post(TokenEvent event) { impl_->Put(std::move(event)); }
uint64_t OutputLoop::num_waits() const { return impl_->num_waits.load(std::memory_order_relaxed); }

}  // namespace diffserve
