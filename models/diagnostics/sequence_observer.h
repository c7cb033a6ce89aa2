// SPDX-License-Identifier: Apache-2.0
// SequenceObserver: sees how one sequence is computed, step by step, on the thread that calls
// Model::Forward. A Request carries any number of them. A step that none wants costs nothing.
#pragma once

#include <limits>
#include <span>

#include "kernels/base/status.h"

namespace diffserve {

template <typename T>
struct DiffAttentionArgs;  // kernels/attention/diff_attention.h
struct SequenceTokens;     // kernels/attention/paged_batch.h

class SequenceObserver {
 public:
  virtual ~SequenceObserver() = default;

  // All positions from this one on are computed, even those that the prefix cache has.
  virtual int first_position() const { return std::numeric_limits<int>::max(); }
  // Whether it wants to see a step that computes positions [begin, end) of a sequence whose prompt
  // has `num_tokens`. Only then are the other methods called.
  virtual bool Wants(int /*begin*/, int /*end*/, int /*num_tokens*/) const { return false; }
  // Whether it wants to see this layer's attention.
  virtual bool WantsAttention(int /*layer*/) const { return false; }
  // As LayerObserver::OnAttention, for layers that it wants; `tokens` is the sequence's part in the
  // batch.
  virtual void OnAttention(int /*layer*/, const DiffAttentionArgs<float>& /*attention*/,
                           const SequenceTokens& /*tokens*/) {}
  // The first of positions [begin, end) whose final normalised state is wanted; all after it are
  // wanted too. `end`: no position is. Only one observer of a sequence may want states.
  virtual int FirstState(int /*begin*/, int end, int /*num_tokens*/) const { return end; }
  // Receives those states, [positions from `first` on][hidden_size].
  virtual void OnStates(int /*first*/, int /*num_tokens*/, std::span<const float> /*states*/) {}
  // Called after all layers of a step that computed positions below `end`.
  virtual void OnEnd(int /*end*/) {}
  // Why the sequence has failed, as far as it has been seen.
  virtual Status status() const { return {}; }
};

}  // namespace diffserve
