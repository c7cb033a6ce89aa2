// SPDX-License-Identifier: Apache-2.0
#include "engine/response_stream.h"

#include <utility>

namespace diffserve {
namespace {

size_t HeldBytes(const std::string& text) {
  return text.capacity() < sizeof(std::string) / 2 ? 0 : HeapBytes(text.capacity() + 1);
}

size_t HeldBytes(const std::vector<SampleResult>& tokens) {
  size_t bytes = HeapBytes(tokens.capacity() * sizeof(SampleResult));
  for (const SampleResult& token : tokens)
    bytes += HeapBytes(token.top_logprobs.capacity() * sizeof(TokenLogprob));
  return bytes;
}

}  // namespace

size_t HeldBytes(const ResponseEvent& event) {
  size_t bytes = sizeof(event);
  if (const auto* started = std::get_if<ResponseStarted>(&event)) {
    for (const PromptInfo& prompt : started->prompts) {
      bytes += sizeof(prompt) + HeldBytes(prompt.text) +
               HeapBytes(prompt.token_ids.ids().capacity() * sizeof(int32_t));
    }
  } else if (const auto* logprobs = std::get_if<ResponsePromptLogprobs>(&event)) {
    bytes += HeldBytes(*logprobs->tokens) / static_cast<size_t>(logprobs->shared_by);
  } else if (const auto* delta = std::get_if<ResponseDelta>(&event)) {
    bytes += HeldBytes(delta->text) + HeldBytes(delta->tokens);
  }
  return bytes;
}

ResponseStream::ResponseStream(size_t max_queued_bytes, std::function<void()> notify)
    : max_queued_bytes_(max_queued_bytes), notify_(std::move(notify)) {}

void ResponseStream::Allow(size_t more_bytes) {
  std::lock_guard lock(mutex_);
  max_queued_bytes_ += more_bytes;
}

void ResponseStream::Keep(std::shared_ptr<const void> kept) {
  std::lock_guard lock(mutex_);
  kept_ = std::move(kept);
}

bool ResponseStream::Push(ResponseEvent event) {
  const bool is_done = std::holds_alternative<ResponseDone>(event);
  const size_t bytes = HeldBytes(event);
  std::lock_guard push_lock(push_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (closed_ || done_ || (overflowed_ && !is_done)) return false;
    if (!is_done && queued_bytes_ + bytes > max_queued_bytes_) {
      overflowed_ = true;
      return false;
    }
    events_.emplace_back(std::move(event), bytes);
    queued_bytes_ += bytes;
    done_ = is_done;
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
  std::list<std::pair<ResponseEvent, size_t>> dropped;
  std::lock_guard push_lock(push_mutex_);
  std::lock_guard lock(mutex_);
  closed_ = true;
  queued_bytes_ = 0;
  dropped.swap(events_);
}

}  // namespace diffserve
