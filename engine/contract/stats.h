// SPDX-License-Identifier: Apache-2.0
// EngineStats: the engine's counters and gauges, copied out at the end of a step. The metrics
// exporter maps them to Prometheus names; the engine does not know Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "engine/contract/guess_source.h"
#include "engine/contract/page_tier.h"
#include "engine/contract/request.h"

namespace diffserve {

// Cumulative histogram with fixed upper bounds (the last bucket is +Inf).
template <size_t kBounds>
struct Histogram {
  std::array<double, kBounds> bounds{};
  std::array<uint64_t, kBounds + 1> counts{};
  double sum = 0;
  void Observe(double value) {
    size_t i = 0;
    while (i < kBounds && value > bounds[i]) ++i;
    ++counts[i];
    sum += value;
  }
};

// Seconds, from 0.1 ms because a small model's step is well below vLLM's first bucket of 10 ms.
inline constexpr std::array<double, 18> kLatencyBounds = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1,    0.25,    0.5,    1,     2.5,    5,     10,   30,    60};
struct LatencyHistogram : Histogram<kLatencyBounds.size()> {
  LatencyHistogram() { bounds = kLatencyBounds; }
};
inline constexpr std::array<double, 12> kTokenCountBounds = {1,   8,   16,   32,   64,   128,
                                                             256, 512, 1024, 2048, 8192, 32768};
struct TokenCountHistogram : Histogram<kTokenCountBounds.size()> {
  TokenCountHistogram() { bounds = kTokenCountBounds; }
};

// As vLLM has them.
inline constexpr std::array<double, 5> kChoiceCountBounds = {1, 2, 5, 10, 20};
struct ChoiceCountHistogram : Histogram<kChoiceCountBounds.size()> {
  ChoiceCountHistogram() { bounds = kChoiceCountBounds; }
};

enum class MissReason { kNoPrefix, kEvicted, kPartialPage, kDisabled, kNoSnapshot, kCount };
enum class RefusalReason {
  kTooLong,
  kQueueFull,
  kTokensFull,
  kQueueWait,  // could not, or did not, start in time
  kDeadline,   // the deadline passed before the request reached the queue
  kDraining,
  kMemoryFull,  // no memory left for answers
  kCount
};

struct EngineStats {
  // Gauges.
  int running = 0;
  int waiting = 0;
  int64_t waiting_tokens = 0;
  // `cached` includes the pages that are held only to be kept in the second tier.
  int pages_total = 0, pages_free = 0, pages_cached = 0, pages_used = 0;
  // For models whose layers keep states or see a window. `used` counts running sequences only. The
  // remaining slots and pages are held by snapshots, or were by one that the last step read.
  int state_slots_total = 0, state_slots_free = 0, state_slots_used = 0;
  int window_pages_total = 0, window_pages_free = 0, window_pages_used = 0;
  int last_step_tokens = 0;
  int last_step_sequences = 0;
  uint64_t steps = 0;
  // Seconds since the last finished step or the arrival of work; 0 when idle. It grows while a step
  // hangs.
  double seconds_since_progress = 0;
  bool draining = false;
  bool failed = false;  // the engine has failed: nothing runs, everything is refused

  // Counters.
  uint64_t prompt_tokens = 0;  // of started requests, including cached tokens
  uint64_t prompt_tokens_cached = 0;
  uint64_t generation_tokens = 0;
  uint64_t prefix_queries = 0;                                                    // tokens
  uint64_t prefix_hits = 0;                                                       // tokens
  std::array<uint64_t, static_cast<size_t>(MissReason::kCount)> prefix_misses{};  // requests that
                                                                                  // got no cached
                                                                                  // token
  uint64_t prefix_deferrals = 0;  // steps in which the next request waited for a prefix that
                                  // another one was computing
  std::array<uint64_t, static_cast<size_t>(RefusalReason::kCount)> refused{};  // requests
  std::array<uint64_t, kNumFinishReasons> finished{};  // requests; see num_finished
  uint64_t snapshots_taken = 0, snapshots_resumed = 0, snapshots_evicted = 0;
  uint64_t preemptions = 0;
  // Speculation: how often tokens were proposed, how many, and how many were right.
  uint64_t proposals = 0;
  GuessCounts proposed_tokens, accepted_tokens;
  int64_t history_bytes = 0;        // a gauge: past answers that guesses are taken from
  int corrupted_in_a_row = 0;       // corrupted requests since the last answer that ended normally
  uint64_t corrupted = 0;           // requests ended because of non-finite logits
  uint64_t constraints_failed = 0;  // requests ended because their constraint could go no further

  // The second tier of the prefix cache, if there is one.
  std::optional<TierStats> tier;
  int tier_loads = 0;             // in progress
  uint64_t tier_hits = 0;         // of prefix_hits, from it
  double tier_seconds_saved = 0;  // its tokens times what the engine has measured for one
  uint64_t tier_pages_lost = 0;   // pages that left the cache before they could be kept
  uint64_t tier_slow_loads = 0;   // prompts that were computed because loading took longer

  // Histograms.
  LatencyHistogram queue_seconds, time_to_first_token_seconds, inter_token_seconds, e2e_seconds,
      prefill_seconds, decode_seconds, inference_seconds;
  LatencyHistogram mean_token_seconds;                             // one per continuation
  LatencyHistogram plan_seconds, execute_seconds, commit_seconds;  // phases of a step
  TokenCountHistogram step_tokens, request_prompt_tokens, request_generation_tokens,
      request_max_tokens;

  // Share of the KV pages that requests hold, 0 to 1.
  double kv_cache_usage() const {
    return pages_total > 0 ? static_cast<double>(pages_used) / pages_total : 0;
  }
  uint64_t num_finished(FinishReason reason) const { return finished[static_cast<size_t>(reason)]; }
};

// Figures of whole responses, one observation for each prompt of a complete answer.
struct ResponseStats {
  ChoiceCountHistogram choices;                   // n
  TokenCountHistogram longest_generation_tokens;  // of the longest of the n choices
};

}  // namespace diffserve
