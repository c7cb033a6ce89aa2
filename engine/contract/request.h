// SPDX-License-Identifier: Apache-2.0
// Request: one continuation of one prompt, as submitted to the engine. TokenEvent: its answer,
// token by token. Plain values that move between threads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/contract/queue_place.h"
#include "engine/contract/sampling_spec.h"
#include "engine/contract/shared_tokens.h"
#include "kernels/base/status.h"
#include "kernels/ops/sampling_types.h"
#include "models/diagnostics/sequence_observer.h"

namespace diffserve {

class TokenConstraint;

using RequestId = uint64_t;  // unique in a process; one per continuation
using TimePoint = std::chrono::steady_clock::time_point;
inline double SecondsBetween(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

struct Request {
  RequestId id = 0;
  SharedTokens prompt;  // at least one token; each is below the vocabulary's size
  SamplingSpec sampling;
  uint64_t sequence = 0;  // index among the n continuations; keys the draws together with the seed
  int max_tokens = 0;     // >= 0; 0 only with prompt_logprobs or observers
  std::vector<int32_t> eos_token_ids;  // end the sequence, finish_reason "stop"
  // See the prompt while it is computed. Their memory is reserved before Submit.
  std::vector<std::shared_ptr<SequenceObserver>> observers;
  int observed_from = std::numeric_limits<int>::max();  // no later position comes from the cache
  // Limits the next token; nullptr: any token. Not shared with other continuations.
  std::shared_ptr<TokenConstraint> constraint;
  // Shared by the continuations; nullptr: none. allowed_tokens: the only tokens that may be drawn,
  // as a mask of token_constraint.h. bad_words: token sequences that may not be generated; the last
  // token of one is banned after its other tokens.
  std::shared_ptr<const std::vector<uint32_t>> allowed_tokens;
  std::shared_ptr<const std::vector<std::vector<int32_t>>> bad_words;
  SharedTokens prediction;    // tokens that may be the output; they are only proposed
  int priority = 0;           // the waiting queue serves lower numbers first; waiting requests age
  std::string cache_salt;     // sequences share cached pages only within one salt
  uint64_t client = 0;        // clients take turns
  std::string history_owner;  // whose past answers are a source of guesses; empty: no one's
  TimePoint arrival;
  // A request that has not started by then is refused. Among the continuations of one response this
  // applies only to the first; the others follow it.
  TimePoint start_by = TimePoint::max();
  std::shared_ptr<QueuePlace> place;  // Engine::Announce's, which Submit takes

  void AddObserver(std::shared_ptr<SequenceObserver> observer) {
    observed_from = std::min(observed_from, observer->first_position());
    observers.push_back(std::move(observer));
  }
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };
inline constexpr size_t kNumFinishReasons = 5;

constexpr const char* NameOf(FinishReason reason) {
  constexpr const char* kNames[kNumFinishReasons] = {"none", "stop", "length", "cancelled",
                                                     "error"};
  return kNames[static_cast<size_t>(reason)];
}
// The name in the APIs of OpenAI and vLLM.
constexpr const char* OpenAiNameOf(FinishReason reason) {
  return reason == FinishReason::kCancelled ? "abort" : NameOf(reason);
}

// Proposed tokens of a Request::prediction: those that became output, and those that were computed
// in vain.
struct PredictionUse {
  int64_t accepted = 0, rejected = 0;
};

// What a sequence took so far, in seconds: from its first step to its first token, and from there
// to its latest one.
struct GenerationTimes {
  double prompt_s = 0;
  double tokens_s = 0;
};

// One event per step and sequence. The last one has finish != kNone; each accepted request gets
// exactly one such event.
struct TokenEvent {
  RequestId request = 0;
  std::vector<int32_t> tokens;         // normally one; empty in a terminal event without a token
  std::vector<SampleResult> logprobs;  // parallel to tokens if requested, else empty
  std::vector<SampleResult> prompt_logprobs;  // sent once, before or with the first token: entry i
                                              // is prompt token i + 1
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token = -1;        // the stop id that ended the sequence, or -1
  Status error;                   // set with kError; with kLength, why a constraint ended it
  int cached_tokens = 0;          // prompt tokens taken from the prefix cache at first admission
  int loaded_tokens = 0;          // of these, from its second tier
  PredictionUse prediction = {};  // so far
  GenerationTimes times = {};     // with tokens
};

}  // namespace diffserve
