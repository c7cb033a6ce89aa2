// SPDX-License-Identifier: Apache-2.0
// CancelledMass: by layer, the share of map 1's mass that map 2 removes at the last token of one
// prompt in N. Queries and keys are captured while the prompt is computed; a text thread computes
// the share when the response has ended. No sample is taken of plain attention, of a model without
// attention source, of prompts with too large maps, or while running samples hold too much memory.
// Samples have a memory limit of their own, so no answer is refused because of them.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/contract/stats.h"
#include "engine/text/responses.h"
#include "models/diagnostics/attention_capture.h"
#include "server/serving/answer/answer_price.h"

namespace diffserve {

// Upper bounds for a share in [0, 1].
inline constexpr std::array<double, 9> kShareBounds = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9};
struct ShareHistogram : Histogram<kShareBounds.size()> {
  ShareHistogram() { bounds = kShareBounds; }
};

class CancelledMass {
 public:
  struct Options {
    std::shared_ptr<const AttentionSource> source;  // nullptr: nothing is sampled
    int every = 0;                                  // requests; 0: nothing is sampled
    int64_t max_numbers = 0;                        // numbers in the maps of one sample
    size_t max_bytes = size_t{64} << 20;            // of all running samples
    // Queues `work` for a text thread. Without room or time it does not run, or runs with false.
    std::function<void(size_t bytes, std::function<void(bool run)> work)> queue;
  };
  explicit CancelledMass(Options options);
  void Close();  // no work is queued after this

  // Counts a request; the first of every N requests gets a capture.
  void Sample(TokenizedRequest& request);
  // By layer, of the mean over its heads; empty if sampling is off.
  std::vector<ShareHistogram> layers() const;

 private:
  struct State;

  std::atomic<uint64_t> num_requests_{0};
  const AnswerBudget memory_;
  const std::shared_ptr<State> state_;  // responses that were sampled may outlive this
};

}  // namespace diffserve
