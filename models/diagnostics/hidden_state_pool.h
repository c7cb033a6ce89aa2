// SPDX-License-Identifier: Apache-2.0
// HiddenStatePool: an embedding, which is one vector of unit length per sequence. It is made from
// the final normalised states of its tokens while steps compute them: their mean, or the last
// token's. *Invariant*: states are added in float64 in the order of positions, and a recomputed
// sequence adds the same bits. So neither chunks, the batch, a prefix hit nor a preemption changes
// the result.
//
// Thread safety: one thread makes it. Then the thread that calls Model::Forward fills it, until
// is_complete(). After that it is const, and any thread may read it.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/status.h"
#include "models/diagnostics/sequence_observer.h"

namespace diffserve {

class HiddenStatePool : public SequenceObserver {
 public:
  enum class Kind { kMean, kLast };
  // Uses the first `dimensions` numbers of each state: at least one, at most `hidden_size`.
  HiddenStatePool(Kind kind, int hidden_size, int dimensions);

  // Bytes of memory, itself included.
  size_t bytes() const;
  // Allocates the memory; call before the sequence is submitted.
  void Reserve();

  int hidden_size() const { return static_cast<int>(hidden_size_); }
  bool wants_all() const { return kind_ == Kind::kMean; }
  // A mean needs every token; the last one is computed anyway.
  int first_position() const override {
    return wants_all() ? 0 : SequenceObserver::first_position();
  }
  bool Wants(int begin, int end, int num_tokens) const override {
    return FirstState(begin, end, num_tokens) < end;
  }
  int FirstState(int begin, int end, int num_tokens) const override;
  // Adds the states. The last of `num_tokens` completes the pool.
  void OnStates(int position, int num_tokens, std::span<const float> states) override;

  bool is_complete() const { return is_complete_.load(std::memory_order_acquire); }
  // Error once complete: kInternal, there is no direction, as the states are not finite or the used
  // numbers are all zero.
  Status status() const override { return status_; }
  // [dimensions], of unit length. REQUIRES: is_complete(), and an ok status.
  std::span<const float> values() const { return values_; }

 private:
  void Complete();

  const Kind kind_;
  const size_t hidden_size_;
  const size_t dimensions_;
  int next_position_ = 0;    // states of earlier positions have been added
  std::vector<double> sum_;  // [dimensions]
  std::vector<float> values_;
  Status status_;
  std::atomic<bool> is_complete_{false};
};

}  // namespace diffserve
