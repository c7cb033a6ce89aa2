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
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "models/layer_observer.h"

namespace diffserve {

class HiddenStatePool {
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
  // The first of positions [begin, end) whose state is still wanted, in a sequence of `num_tokens`;
  // all after it are wanted too. `end`: no position is.
  int FirstWanted(int begin, int end, int num_tokens) const;
  // Adds the states of positions [position, position + states.size() / hidden_size), which
  // FirstWanted gave. The last of `num_tokens` completes the pool.
  void Take(int position, int num_tokens, std::span<const float> states);

  bool is_complete() const { return is_complete_.load(std::memory_order_acquire); }
  // Valid once complete. Error: kInternal, there is no direction, as the states are not finite or
  // the used numbers are all zero.
  const Status& status() const { return status_; }
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

// Fills the pools of the sequences of one batch.
class PoolingObserver : public LayerObserver {
 public:
  // Adds the sequence of `num_tokens` tokens whose part in the batch is `batch`.
  void Add(std::shared_ptr<HiddenStatePool> pool, const SequenceTokens& batch, int num_tokens);

  void OnAttention(int, const DiffAttentionArgs<float>&) override {}
  void OnHidden(int, std::span<const float>) override {}
  std::span<const int32_t> StateRows() const override { return rows_; }
  void OnStates(std::span<const float> states) override;

 private:
  struct PooledSequence {
    std::shared_ptr<HiddenStatePool> pool;
    int position = 0;  // of the first row
    size_t rows = 0;
    int num_tokens = 0;
  };
  std::vector<PooledSequence> sequences_;  // their rows are consecutive
  std::vector<int32_t> rows_;
};

}  // namespace diffserve
