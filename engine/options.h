// Every limit and size of the engine. The command line fills it; nothing reads the environment.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace diffserve {

// Pages that hold so many tokens.
constexpr int64_t PagesFor(int64_t tokens, int page_size) {
  return (tokens + page_size - 1) / page_size;
}

struct EngineOptions {
  int page_size = 16;                 // slots a page
  int num_pages = 0;                  // pages in the pool
  int max_model_len = 0;              // tokens of prompt and output together
  int max_num_seqs = 256;             // sequences running at once
  int max_num_batched_tokens = 2048;  // computed in a step
  // Sequences that can run at once: slots for what each keeps beside its pages.
  int MaxRunning() const { return std::min(max_num_seqs, max_num_batched_tokens); }
  bool enable_prefix_caching = true;
  // Where layers keep states or see a window, what sequences have beside the pages of their tokens:
  // slots, for each that may run and for snapshots, and pages of the layers with a window (0: they
  // have page ids in common with the others). 0 slots: the model has no such layers.
  int num_state_slots = 0;
  int num_window_pages = 0;
  int window = 0;  // tokens that the widest window sees
  // Tokens between the states that the prefix cache keeps, beside those at prompts' ends; 0: none
  // is kept, so nothing is found. REQUIRES: a multiple of page_size.
  int state_snapshot_interval = 0;
  // Window pages that a token and the window before it can lie in.
  int64_t WindowPagesOfASequence() const { return PagesFor(window, page_size) + 1; }
  // What so many sequences can need, each for its window and all for what a step computes.
  int64_t WindowPagesMin(int running) const {
    return running * (WindowPagesOfASequence() + 1) + PagesFor(max_num_batched_tokens, page_size);
  }
  // Admission bounds: what may wait before new work is refused with kResourceExhausted.
  int max_waiting_requests = 4096;
  int64_t max_waiting_tokens = int64_t{1} << 22;
  float max_queue_wait_s = 10;  // until a request starts
  // One client may have so many times what it leaves of these bounds to others.
  static constexpr int kShareOfTheRest = 7;
  int MaxWaitingRequestsOfAClient() const {
    return static_cast<int>((int64_t{kShareOfTheRest} * max_waiting_requests + kShareOfTheRest) /
                            (kShareOfTheRest + 1));
  }
  // A sequence preempted this often waits until the pool can hold all it may still need, and is
  // then never preempted again.
  int max_preemptions_per_sequence = 4;
  // Tokens that a Proposer may put behind a sequence's last one in a step, to be verified by it; 0:
  // none. REQUIRES: an executor of depth 1.
  int speculative_tokens = 0;
  int drain_grace_ms = 5000;  // how long Drain waits beyond its deadline for a running step to
                              // return
};

}  // namespace diffserve
