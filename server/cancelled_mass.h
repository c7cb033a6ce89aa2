// CancelledMass: what share of map 1's mass the difference of the maps removes, by layer, of the
// last token of one prompt in so many. What it takes is captured while the prompt is computed, and
// reckoned on a text thread when the response has ended. Nothing is sampled of plain attention, of
// a model that nobody can look at, of prompts whose maps would be too many numbers, and while the
// samples under way hold too much memory; it is their own, so that no answer is refused for it.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/stats.h"
#include "engine/text/responses.h"
#include "models/diagnostics/attention_capture.h"
#include "server/answer_price.h"

namespace diffserve {

class CancelledMass {
 public:
  struct Options {
    std::shared_ptr<const AttentionSource> source;  // nullptr: nothing is sampled
    int every = 0;                                  // requests; 0: nothing is sampled
    int64_t max_numbers = 0;                        // of the maps of one sample
    size_t max_bytes = size_t{64} << 20;            // of all samples under way
    // Has `work` run on a text thread; not, or with false, if there is no room or no time.
    std::function<void(size_t bytes, std::function<void(bool run)> work)> queue;
  };
  explicit CancelledMass(Options options);
  void Close();  // from now on nothing is queued

  // Counts a request, the first of every so many of which gets a capture.
  void Sample(TokenizedRequest& request);
  // By layer, of the mean over its heads; empty if nothing is ever sampled.
  std::vector<ShareHistogram> layers() const;

 private:
  struct State;

  std::atomic<uint64_t> num_requests_{0};
  const AnswerBudget memory_;
  const std::shared_ptr<State> state_;  // responses that were sampled may outlive this
};

}  // namespace diffserve
