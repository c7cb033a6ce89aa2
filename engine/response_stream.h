// ResponseStream: the one way out. The output thread pushes events; the transport (an HTTP session
// or a gRPC reactor) is notified and takes them. The queue is bounded in bytes: a reader that is
// too slow overflows it, and the request is cancelled.
//
// Thread safety: one thread pushes; the other methods may be called from any thread. `notify` runs
// on the pushing thread after each event, without a lock that TryPop needs, and must only post a
// wake-up: it may not call Close.
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

#include "engine/request.h"

namespace diffserve {

struct PromptInfo {
  SharedTokens token_ids;
  std::string text;              // for echo; empty of a conversation
  size_t opening_tokens = 0;     // of token_ids: those that no text comes before
  bool opens_reasoning = false;  // it ends within reasoning, which the answer goes on with
};

// The first continuation has begun. Comes first, once.
struct ResponseStarted {
  std::vector<PromptInfo> prompts;
};

// Log-probabilities of a prompt, held once for all its continuations: entry i belongs to prompt
// token i + 1, since nothing comes before the first. Never null.
using PromptScores = std::shared_ptr<const std::vector<SampleResult>>;

struct ResponsePromptLogprobs {
  int choice = 0;
  PromptScores tokens;
  int shared_by = 1;  // events that hold the same
};

struct ResponseDelta {
  int choice = 0;  // prompt index * n + continuation index
  std::string text;
  std::vector<SampleResult> tokens;  // ids always; log-probabilities only if asked for
  FinishReason finish = FinishReason::kNone;
  std::variant<std::monostate, std::string, int32_t> stop_reason;  // the stop string or id that
                                                                   // matched
  size_t opening_tokens = 0;  // the first of `tokens`: no text comes before them, not even the
                              // prompt's
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// The last event, exactly once: an error that ended the request (before or after ResponseStarted),
// or ok.
struct ResponseDone {
  Status status;
  Usage usage;
};

using ResponseEvent =
    std::variant<ResponseStarted, ResponsePromptLogprobs, ResponseDelta, ResponseDone>;

// What glibc's allocator takes for `bytes` of one piece.
constexpr size_t HeapBytes(size_t bytes) {
  return bytes == 0 ? 0 : std::max<size_t>(32, (bytes + 8 + 15) / 16 * 16);
}
// What an event holds in memory, its own share of what it shares.
size_t HeldBytes(const ResponseEvent& event);

class ResponseStream {
 public:
  ResponseStream(size_t max_queued_bytes, std::function<void()> notify);

  // Raises the limit by what the request's prompts make, which is paid for (server/answer_price.h):
  // log-probabilities of a long prompt are not a slow reader's fault.
  void Allow(size_t more_bytes);
  // Held until the last holder of the stream lets go of it.
  void Keep(std::shared_ptr<const void> kept);

  // False once the queue has overflowed or Close was called: the producer then cancels the request.
  // An event counts for what it holds; ResponseDone always fits, also where there is no memory, and
  // nothing is taken after it.
  bool Push(ResponseEvent event);
  std::optional<ResponseEvent> TryPop();
  // The transport is gone: nothing more is queued, `notify` is never called again after this
  // returns.
  void Close();
  // Whether events are still taken: false after ResponseDone, an overflow or Close.
  bool is_open() const;

 private:
  mutable std::mutex mutex_;
  std::list<std::pair<ResponseEvent, size_t>> events_;  // but the last one
  std::optional<ResponseDone> last_event_;
  size_t queued_bytes_ = 0;
  size_t max_queued_bytes_;
  bool overflowed_ = false;
  bool done_ = false;  // ResponseDone was taken
  bool closed_ = false;
  std::mutex push_mutex_;  // held during Push, so that Close waits for a notify_ that has begun;
                           // taken before mutex_
  std::function<void()> notify_;
  std::shared_ptr<const void> kept_;
};

}  // namespace diffserve
