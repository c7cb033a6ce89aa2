// LayerObserver: looks into a forward pass of the CPU's decoder, layer by layer, on the thread that
// calls Model::Forward. What it is shown is valid during the call. A batch without one costs
// nothing, and with one its results are the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention/diff_attention.h"

namespace diffserve {

class LayerObserver {
 public:
  virtual ~LayerObserver() = default;

  // Before layer `layer` attends: q is rotated, and the pages hold K and V of the batch's tokens.
  // The output has not been written yet.
  virtual void OnAttention(int layer, const DiffAttentionArgs<float>& attention) = 0;
  // After layer `layer`: the residual stream, [tokens, hidden_size].
  virtual void OnHidden(int layer, std::span<const float> hidden) = 0;

  // Rows of the batch whose final normalised states are wanted, ascending; asked after all layers.
  virtual std::span<const int32_t> StateRows() const { return {}; }
  // Those, [rows, hidden_size], if there are any.
  virtual void OnStates(std::span<const float>) {}
};

}  // namespace diffserve
