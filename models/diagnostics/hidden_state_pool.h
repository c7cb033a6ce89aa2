// SPDX-License-Identifier: Apache-2.0
// HiddenStatePool: what is kept of a sequence's final normalised states, which steps compute. It is
// an embedding, one vector of unit length: their mean or the last token's; or it is the state of
// each token, as it is or at unit length. *Invariant*: states are added in float64 in the order of
// positions, and a recomputed sequence adds the same bits. So neither chunks, the batch, a prefix
// hit nor a preemption changes the result.
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
  enum class Kind { kMean, kLast, kEach, kEachAtUnitLength };
  // Uses the first `dimensions` numbers of each state: at least one, at most `hidden_size`.
  HiddenStatePool(Kind kind, int hidden_size, int dimensions);

  // Bytes of memory for a sequence of `num_tokens`, itself included.
  size_t bytes(size_t num_tokens) const;
  // Allocates the memory; call before the sequence is submitted.
  void Reserve(size_t num_tokens);

  int hidden_size() const { return static_cast<int>(hidden_size_); }
  size_t dimensions() const { return dimensions_; }
  bool wants_all() const { return kind_ != Kind::kLast; }
  // Whether it is the state of each token.
  bool keeps_each() const { return kind_ == Kind::kEach || kind_ == Kind::kEachAtUnitLength; }
  // All kinds but the last token's need every token; the last one is computed anyway.
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
  // [dimensions] of unit length; of each token [tokens][dimensions]. REQUIRES: is_complete(), and
  // an ok status.
  std::span<const float> values() const { return values_; }

 private:
  void Keep(size_t position, std::span<const float> state);
  void Complete();
  // Records why a vector with this sum of squares has no direction; true if it has one.
  bool CheckSquares(double squares);

  const Kind kind_;
  const size_t hidden_size_;
  const size_t dimensions_;
  int next_position_ = 0;    // states of earlier positions have been added
  std::vector<double> sum_;  // [dimensions]; empty if each token is kept
  std::vector<float> values_;
  Status status_;
  std::atomic<bool> is_complete_{false};
};

}  // namespace diffserve
