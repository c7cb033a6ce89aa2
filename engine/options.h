// Every limit and size of the engine. The command line fills it; nothing reads the environment.
#pragma once

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
  bool enable_prefix_caching = true;
  // Admission bounds: what may wait before new work is refused with kResourceExhausted.
  int max_waiting_requests = 1024;
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
