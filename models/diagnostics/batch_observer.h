// SPDX-License-Identifier: Apache-2.0
// BatchObserver: shows one batch to the observers of its sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/diagnostics/sequence_observer.h"
#include "models/layer_observer.h"

namespace diffserve {

class BatchObserver : public LayerObserver {
 public:
  // `sequence` is an index into the batch's sequences, `tokens` its entry there. `observer`
  // outlives this.
  void Add(SequenceObserver& observer, size_t sequence, const SequenceTokens& tokens,
           int num_tokens);
  bool empty() const { return seen_.empty(); }

  bool WantsAttention(int layer, size_t sequence) const override;
  void OnAttention(int layer, const DiffAttentionArgs<float>& attention) override;
  std::span<const int32_t> StateRows() const override { return rows_; }
  void OnStates(std::span<const float> states) override;
  void OnEnd() override;

 private:
  struct Seen {
    SequenceObserver* observer;
    size_t sequence;
    int first_state;
    int end;
    int num_tokens;
  };
  std::vector<Seen> seen_;
  std::vector<int32_t> rows_;  // of the states that are wanted
};

}  // namespace diffserve
