// SPDX-License-Identifier: Apache-2.0
// EngineOptions: every limit and size of the engine. The command line fills it; nothing reads the
// environment.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace diffserve {

// How many pages `tokens` tokens need.
constexpr int64_t PagesFor(int64_t tokens, int page_size) {
  return (tokens + page_size - 1) / page_size;
}

struct EngineOptions {
  int page_size = 16;                 // slots per page
  int num_pages = 0;                  // pages in the pool
  int max_model_len = 0;              // tokens of prompt and output together
  int max_num_seqs = 256;             // sequences running at once
  int max_num_batched_tokens = 2048;  // tokens computed per step
  // A step in which some sequences decode takes as many prompt tokens as are expected to fit into
  // this time, and one page at least; 0: no limit.
  float max_step_ms = 0;
  // How many sequences can run at once. Each needs its own slots for state outside the pages.
  int MaxRunning() const { return std::min(max_num_seqs, max_num_batched_tokens); }
  bool enable_prefix_caching = true;
  // Memory outside the token pages, for models whose layers keep states or see a window. Slots: for
  // each running sequence and for snapshots; 0: the model has no such layers. Window pages: for the
  // layers with a window; 0: these share page ids with the other layers.
  int num_state_slots = 0;
  int num_window_pages = 0;
  int window = 0;  // tokens that the widest window sees
  // Tokens between the states that the prefix cache keeps, in addition to those at prompt ends; 0:
  // keeps none, so no prefix is found. REQUIRES: a multiple of page_size.
  int state_snapshot_interval = 0;
  // Window pages that one token and the window before it can touch.
  int64_t WindowPagesPerSequence() const { return PagesFor(window, page_size) + 1; }
  // Window pages that `running` sequences can need: each for its window, and all together for the
  // tokens of one step.
  int64_t WindowPagesMin(int running) const {
    return running * (WindowPagesPerSequence() + 1) + PagesFor(max_num_batched_tokens, page_size);
  }
  // Admission limits of the queue; above them new work is refused with kResourceExhausted.
  int max_waiting_requests = 4096;
  int64_t max_waiting_tokens = int64_t{1} << 22;
  float max_queue_wait_s = 10;  // until a request starts
  // The most queue space that one client may have, as a multiple of what it leaves to others.
  static constexpr int kClientToOthersRatioMax = 7;
  int MaxWaitingRequestsPerClient() const {
    return static_cast<int>(
        (int64_t{kClientToOthersRatioMax} * max_waiting_requests + kClientToOthersRatioMax) /
        (kClientToOthersRatioMax + 1));
  }
  // A sequence preempted this often waits until the pool can hold everything that it may still
  // need. It is then never preempted again.
  int max_preemptions_per_sequence = 4;
  // The most tokens that a Proposer may append to a sequence in a step, which then verifies them;
  // 0: none. Fewer are proposed where more would not pay. Steps are then not planned
  // ahead.
  int speculative_tokens = 0;
  // Memory for past answers that guesses are taken from; 0: none are kept. See AnswerHistory.
  int64_t speculative_history_bytes = 0;
  // Bytes of the draft model's weights in relation to the model's; 0: there is none. It guesses
  // tokens of sequences of at most draft_len_max tokens, where that pays. REQUIRES:
  // speculative_tokens > 0.
  double draft_cost = 0;
  int draft_len_max = 0;
  // Nothing is proposed for a step with more rows than this. Up to it, a step mostly waits for the
  // weights, which all rows share.
  static constexpr int kVerifiedRowsMax = 8;
  int drain_grace_ms = 5000;  // how long Drain waits beyond its deadline for a running step to
                              // return
};

}  // namespace diffserve
