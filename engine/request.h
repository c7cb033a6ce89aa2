// Request: what the engine is asked for (one continuation of one prompt), and TokenEvent: what it
// answers, token by token. Plain values; they travel between threads by move.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/shared_tokens.h"
#include "kernels/base/status.h"
#include "kernels/ops/sampling_types.h"

namespace diffserve {

class AttentionCapture;
class HiddenStatePool;
class TokenConstraint;

using RequestId = uint64_t;  // unique in a process; one a continuation
using TimePoint = std::chrono::steady_clock::time_point;

struct Request {
  RequestId id = 0;
  SharedTokens prompt;  // at least one token, each below the vocabulary's size
  SamplingParams sampling;
  uint64_t sequence = 0;  // which of the n continuations; keys the draws together with the seed
  int max_tokens = 0;     // >= 0; 0 only with prompt_logprobs, capture or pool
  int min_tokens = 0;     // EOS and stop ids cannot be drawn before
  bool ignore_eos = false;
  std::vector<int32_t> eos_token_ids;   // end the sequence, finish_reason "stop"
  std::vector<int32_t> stop_token_ids;  // likewise; stop_reason tells which
  int prompt_logprobs = -1;  // -1: none; 0..20: logprob of each prompt token but the first, and so
                             // many others
  // Filled while the prompt is computed; nullptr: nothing is captured. Its positions are the
  // prompt's, its memory is reserved.
  std::shared_ptr<AttentionCapture> capture;
  int capture_from = 0;  // the first of its positions
  // Likewise, made of the prompt's final states; nullptr: nothing is pooled.
  std::shared_ptr<HiddenStatePool> pool;
  bool pools_all_tokens = false;  // it wants the state of each, not of the last alone
  // What may be drawn next; nullptr: anything. This continuation's own.
  std::shared_ptr<TokenConstraint> constraint;
  // Shared by the continuations, null: none. The only tokens that may be drawn, as a mask of
  // token_constraint.h; and sequences of tokens that may not: the last token of one is banned where
  // the others come before it.
  std::shared_ptr<const std::vector<uint32_t>> allowed_tokens;
  std::shared_ptr<const std::vector<std::vector<int32_t>>> bad_words;
  int priority = 0;        // the waiting line serves lower numbers first; they age
  std::string cache_salt;  // sequences share cached pages only within one salt
  uint64_t client = 0;     // who asks; clients take turns
  TimePoint arrival;
  // It must start before it, or is refused. Of several continuations of one response the first
  // alone has to: the others follow it.
  TimePoint start_by = TimePoint::max();
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };
inline constexpr size_t kNumFinishReasons = 5;

constexpr const char* NameOf(FinishReason reason) {
  constexpr const char* kNames[kNumFinishReasons] = {"none", "stop", "length", "cancelled",
                                                     "error"};
  return kNames[static_cast<size_t>(reason)];
}
// As the APIs of OpenAI and vLLM call it.
constexpr const char* OpenAiNameOf(FinishReason reason) {
  return reason == FinishReason::kCancelled ? "abort" : NameOf(reason);
}

// One event a step and sequence. The last one has finish != kNone; there is exactly one such event
// for each accepted request.
struct TokenEvent {
  RequestId request = 0;
  std::vector<int32_t> tokens;         // normally one; empty in a terminal event without token
  std::vector<SampleResult> logprobs;  // parallel to tokens if asked for, else empty
  std::vector<SampleResult> prompt_logprobs;  // once, before or with the first token: entry i is
                                              // prompt token i + 1
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token = -1;  // the stop id that ended it, or -1
  Status error;             // with kError
  int cached_tokens = 0;    // prompt tokens taken from the prefix cache at first admission
};

}  // namespace diffserve
