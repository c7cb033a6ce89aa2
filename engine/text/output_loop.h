// OutputLoop: the output thread. It alone owns the Detokenizers and the state of stop strings; it
// takes TokenEvents from a bounded outbox, turns them into ResponseDeltas, cancels a continuation
// whose stop string matched, and ends each response once.
//
// Thread safety: Register, Abort and Post may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/bounded_queue.h"
#include "engine/response_stream.h"
#include "engine/text/detokenizer.h"

namespace diffserve {

// One response = the continuations of one client request.
struct ResponseSpec {
  std::shared_ptr<ResponseStream> stream;
  std::vector<RequestId> requests;            // choice i is requests[i]
  std::vector<int> prompt_tokens;             // per choice's prompt
  std::vector<std::vector<int32_t>> prompts;  // per choice; may be empty (prompt log-probabilities
                                              // carry their ids)
  int choices_per_prompt = 1;                 // n: usage counts each prompt once
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  bool logprobs = false;
  int min_tokens = 0;  // stop strings end nothing before this many tokens
};

class OutputLoop {
 public:
  // Reaches Engine::Cancel; `as` is kStop where the client has its whole answer (a stop string
  // matched), else kCancelled.
  using CancelFunction = std::function<void(RequestId, FinishReason as)>;
  // `cancel` is called on the output thread. `tokenizer` outlives this.
  OutputLoop(const Tokenizer& tokenizer, size_t outbox_capacity, CancelFunction cancel);
  // Ends after the last posted event. What has not ended by then ends with kUnavailable, and
  // `cancel` is not called any more (the engine may be gone).
  ~OutputLoop();

  // Before the requests are submitted to the engine. Waits while the outbox is full.
  void Register(ResponseSpec spec);
  // Ends the whole response with `status` and cancels its continuations: one could not be submitted
  // after Register, or the client's deadline has passed. An id whose response has ended is ignored.
  void Abort(RequestId request, Status status);
  // The engine's EventSink. Waits while the outbox is full (counted). An event of an unknown or
  // ended continuation is dropped.
  void Post(TokenEvent event);

  uint64_t num_waits() const;  // how often a caller found the outbox full

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
