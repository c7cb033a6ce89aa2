// SPDX-License-Identifier: Apache-2.0
// ResponseStream: carries one response's events to its transport (an HTTP session or a gRPC
// reactor). The output thread pushes events; the transport is notified and pops them. The queue is
// bounded in bytes: a reader that is too slow overflows it, and the request is cancelled.
//
// Thread safety: one thread pushes; the other methods may be called from any thread. `notify` runs
// on the pushing thread after each event, without a lock that TryPop needs. It must only post a
// wake-up and may not call Close.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/contract/request.h"

namespace diffserve {

// Where an answer begins: within reasoning, after it, or so that the model may open it.
enum class ReasoningStart { kMayOpen, kOpen, kClosed };

struct PromptInfo {
  SharedTokens token_ids;
  std::string text;           // for echo; empty for a conversation
  size_t opening_tokens = 0;  // leading token_ids before which there is no text
  ReasoningStart reasoning = ReasoningStart::kMayOpen;
};

// The first continuation has begun. Sent first and once.
struct ResponseStarted {
  std::vector<PromptInfo> prompts;
};

// Log-probabilities of a prompt, stored once for all its continuations. Entry i belongs to prompt
// token i + 1: the first token has none. Never null.
using PromptScores = std::shared_ptr<const std::vector<SampleResult>>;

struct ResponsePromptLogprobs {
  int choice = 0;
  PromptScores tokens;
  int shared_by = 1;  // number of events that share `tokens`
};

struct ResponseDelta {
  int choice = 0;  // prompt index * n + continuation index
  std::string text;
  std::vector<SampleResult> tokens;  // ids always; log-probabilities only if requested
  FinishReason finish = FinishReason::kNone;
  std::variant<std::monostate, std::string, int32_t> stop_reason;  // the stop string or id that
                                                                   // matched
  size_t opening_tokens = 0;  // leading `tokens` before which there is no text, not even the
                              // prompt's
  int64_t cached_tokens = 0;  // of its prompt, if no event has said so before
  GenerationTimes times = {};
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompts, from the prefix cache
  int64_t loaded_tokens = 0;      // of these, from its second tier
  PredictionUse prediction = {};  // of all continuations
};

// The last event, sent exactly once: ok, or the error that ended the request (before or after
// ResponseStarted).
struct ResponseDone {
  Status status;
  Usage usage;
};

using ResponseEvent =
    std::variant<ResponseStarted, ResponsePromptLogprobs, ResponseDelta, ResponseDone>;

// The memory that glibc's allocator uses for one allocation of `bytes`.
constexpr size_t HeapBytes(size_t bytes) {
  return bytes == 0 ? 0 : std::max<size_t>(32, (bytes + 8 + 15) / 16 * 16);
}
// The memory that an event holds, including its part of what it shares with others.
size_t HeldBytes(const ResponseEvent& event);

class ResponseStream {
 public:
  ResponseStream(size_t max_queued_bytes, std::function<void()> notify);

  // Raises the limit by the size of the prompts' own events, which is accounted for elsewhere
  // (server/serving/answer/answer_price.h). The log-probabilities of a long prompt do not make a
  // reader slow.
  void Allow(size_t more_bytes);
  // Keeps `kept` alive until the stream is destroyed.
  void Keep(std::shared_ptr<const void> kept);

  // False once the queue has overflowed or Close was called; the producer then cancels the request.
  // An event counts with the memory that it holds. ResponseDone always fits, and nothing is
  // accepted after it.
  bool Push(ResponseEvent event);
  std::optional<ResponseEvent> TryPop();
  // The transport has gone: nothing more is queued, and `notify` is never called after this
  // returns.
  void Close();
  // Whether events are still accepted: false after ResponseDone, an overflow or Close.
  bool is_open() const;

 private:
  mutable std::mutex mutex_;
  std::list<std::pair<ResponseEvent, size_t>> events_;
  size_t queued_bytes_ = 0;
  size_t max_queued_bytes_;
  bool overflowed_ = false;
  bool done_ = false;  // ResponseDone was pushed
  bool closed_ = false;
  std::mutex push_mutex_;  // held during Push, so that Close waits for a running notify_; taken
                           // before mutex_
  std::function<void()> notify_;
  std::shared_ptr<const void> kept_;
};

}  // namespace diffserve
