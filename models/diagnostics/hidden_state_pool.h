// HiddenStatePool: one vector of unit length for a sequence, made of the final normalised states of
// its tokens while steps compute them: their mean, or that of the last token. What an embedding is.
// *Invariant*: states are added in float64, token after token in the order of positions, and those
// of a sequence that is computed anew are the bits that were added before. So neither chunks nor
// the batch, a prefix hit or a preemption can be seen in the result.
//
// Thread safety: one thread makes it; then the one that calls Model::Forward fills it, until
// is_complete(); after that it is const, and any thread may read it.
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
  // Of each state the first `dimensions` numbers count; at most `hidden_size`, at least one.
  HiddenStatePool(Kind kind, int hidden_size, int dimensions);

  // What it takes of memory, itself included.
  size_t bytes() const;
  // Takes the memory; before the sequence is submitted.
  void Reserve();

  int hidden_size() const { return static_cast<int>(hidden_size_); }
  bool wants_all() const { return kind_ == Kind::kMean; }
  // Of positions [begin, end) of a sequence of `num_tokens`, the first whose state is still wanted;
  // from there on all are. `end`: none is.
  int FirstWanted(int begin, int end, int num_tokens) const;
  // The states of positions [position, position + states.size() / hidden_size), which FirstWanted
  // gave. Those of the last of `num_tokens` complete it.
  void Take(int position, int num_tokens, std::span<const float> states);

  bool is_complete() const { return is_complete_.load(std::memory_order_acquire); }
  // Once it is complete. Error: kInternal, there is no direction: the states are not finite, or
  // what counts of them comes to nothing.
  const Status& status() const { return status_; }
  // [dimensions], of unit length. REQUIRES: is_complete(), and an ok status.
  std::span<const float> values() const { return values_; }

 private:
  void Complete();

  const Kind kind_;
  const size_t hidden_size_;
  const size_t dimensions_;
  int next_position_ = 0;    // states of those before have been added
  std::vector<double> sum_;  // [dimensions]
  std::vector<float> values_;
  Status status_;
  std::atomic<bool> is_complete_{false};
};

// Fills the pools of the sequences of one batch.
class PoolingObserver : public LayerObserver {
 public:
  // Of the sequence of `num_tokens` whose tokens in the batch `batch` names.
  void Add(std::shared_ptr<HiddenStatePool> pool, const SequenceTokens& batch, int num_tokens);

  void OnAttention(int, const DiffAttentionArgs<float>&) override {}
  void OnHidden(int, std::span<const float>) override {}
  std::span<const int32_t> StateRows() const override { return rows_; }
  void OnStates(std::span<const float> states) override;

 private:
  struct Wish {
    std::shared_ptr<HiddenStatePool> pool;
    int position = 0;  // of the first row
    size_t rows = 0;
    int num_tokens = 0;
  };
  std::vector<Wish> wishes_;  // their rows follow each other
  std::vector<int32_t> rows_;
};

}  // namespace diffserve
