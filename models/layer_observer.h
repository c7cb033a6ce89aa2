// SPDX-License-Identifier: Apache-2.0
// LayerObserver: sees the forward pass layer by layer, on the thread that calls Model::Forward.
// Arguments are host memory, valid during the call; what a GPU computed is copied there. A batch
// without an observer costs nothing; with one its results have the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/diff_attention.h"

namespace diffserve {

class LayerObserver {
 public:
  virtual ~LayerObserver() = default;

  // Whether OnAttention may be left out for a sequence of the batch. A GPU copies nothing of it
  // then: its rows and pages in OnAttention's arguments are undefined.
  virtual bool WantsAttention(int /*layer*/, size_t /*sequence*/) const { return true; }
  // Called before layer `layer` attends: q is rotated, and the pages hold K and V of the batch's
  // tokens. The output has not been written yet.
  virtual void OnAttention(int /*layer*/, const DiffAttentionArgs<float>& /*attention*/) {}
  // Called after layer `layer` with the residual stream, [tokens, hidden_size]. Only on the CPU.
  virtual void OnHidden(int /*layer*/, std::span<const float> /*hidden*/) {}

  // Rows of the batch whose final normalised states are wanted, ascending. Called after all layers.
  virtual std::span<const int32_t> StateRows() const { return {}; }
  // Receives those states, [rows, hidden_size], if there are any rows.
  virtual void OnStates(std::span<const float> /*states*/) {}
  // Called last.
  virtual void OnEnd() {}
};

}  // namespace diffserve
