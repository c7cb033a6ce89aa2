#include "engine/response_stream.h"

#include <algorithm>
#include <utility>

namespace diffserve {
namespace {

size_t BytesOf(const std::vector<SampleResult>& tokens) {
  size_t bytes = tokens.size() * sizeof(SampleResult);
  for (const SampleResult& token : tokens)
    bytes += token.top_logprobs.size() * sizeof(TokenLogprob);
  return bytes;
}

// About what the event holds in memory.
size_t BytesOf(const ResponseEvent& event) {
  size_t bytes = sizeof(event);
  if (const auto* started = std::get_if<ResponseStarted>(&event)) {
    for (const PromptInfo& prompt : started->prompts) {
      bytes += sizeof(prompt) + prompt.token_ids.size() * sizeof(int32_t) + prompt.text.size();
    }
  } else if (const auto* logprobs = std::get_if<ResponsePromptLogprobs>(&event)) {
    bytes += BytesOf(logprobs->tokens);
  } else if (const auto* delta = std::get_if<ResponseDelta>(&event)) {
    bytes += delta->text.size() + BytesOf(delta->tokens);
  }
  return bytes;
}

}  // namespace

ResponseStream::ResponseStream(size_t max_queued_bytes, std::function<void()> notify)
    : max_queued_bytes_(max_queued_bytes), notify_(std::move(notify)) {}

bool ResponseStream::Push(ResponseEvent event) {
  const bool is_done = std::holds_alternative<ResponseDone>(event);
  const size_t bytes = std::min(BytesOf(event), std::max<size_t>(max_queued_bytes_ / 4, 1));
  std::lock_guard push_lock(push_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (closed_ || done_ || (overflowed_ && !is_done)) return false;
    if (!is_done && queued_bytes_ + bytes > max_queued_bytes_) {
      overflowed_ = true;
      return false;
    }
    done_ = is_done;
    queued_bytes_ += bytes;
    events_.emplace_back(std::move(event), bytes);
  }
  if (notify_) notify_();
  return true;
}

bool ResponseStream::is_open() const {
  std::lock_guard lock(mutex_);
  return !closed_ && !done_ && !overflowed_;
}

std::optional<ResponseEvent> ResponseStream::TryPop() {
  std::lock_guard lock(mutex_);
  if (events_.empty()) return std::nullopt;
  std::optional<ResponseEvent> event(std::move(events_.front().first));
  queued_bytes_ -= events_.front().second;
  events_.pop_front();
  return event;
}

void ResponseStream::Close() {
  std::deque<std::pair<ResponseEvent, size_t>> dropped;
  std::lock_guard push_lock(push_mutex_);
  std::lock_guard lock(mutex_);
  closed_ = true;
  queued_bytes_ = 0;
  dropped.swap(events_);
}

}  // namespace diffserve
