// SPDX-License-Identifier: Apache-2.0
// StepObserver: shows a step on a device to a LayerObserver, which reads host memory. What an
// observer asks for is copied where the decoder stands, and the host waits for each copy; a step
// without an observer has none of this. Rows and sequences are the batch's, whatever the device's
// order is. A step of several passes is shown pass by pass.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/diff_attention.h"
#include "kernels/base/cuda/memory.h"
#include "models/layer_observer.h"
#include "models/model.h"
#include "models/step_batch_cuda.h"

namespace diffserve::cuda {

class StepObserver {
 public:
  // REQUIRES: batch.observer is set. All arguments outlive this.
  StepObserver(const Batch& batch, const ModelConfig& config, const Stream& stream);

  // Before the pass's first layer. `packed` is not used after the call.
  void BeginPass(const PackedStep& packed);
  // As LayerObserver::OnAttention; `attention` has device memory, and its rows are the pass's.
  Status OnAttention(int layer, const DiffAttentionArgs<BFloat16>& attention);
  // Whether OnStates is to be called after the pass's last layer.
  bool wants_states() const { return !batch_.observer->StateRows().empty(); }
  // `states`: [num_tokens of the pass][hidden_size], the final normalised states.
  Status OnStates(const DeviceBuffer& states);
  // After the last pass.
  void End();

 private:
  // Copies queries and lambdas of the sequence's tokens to its rows of q_ and lambda_rows_.
  void TakeRows(const SequenceTokens& sequence, const DiffSpec& spec);
  // Ids of copies for the pages that the sequence's tokens see, from `*num_pages` on; -1: not seen.
  static std::vector<int32_t> TableOf(const SequenceTokens& sequence, int page_size, int window,
                                      int32_t* num_pages);
  // Queues the copies into pages_.
  Status TakePages(const PagedKv& kv, const SequenceTokens& sequence,
                   std::span<const int32_t> table);
  bool IsInPass(const SequenceTokens& sequence) const;
  // The tokens of the batch's sequence, with the page table that the layer reads.
  SequenceTokens SequenceOf(size_t index, int window) const;

  const Batch& batch_;
  const ModelConfig& config_;
  const Stream& stream_;
  std::vector<int32_t> packed_of_token_;  // [tokens of the batch]: the pass's row, or -1
  int num_tokens_ = 0;                    // of the pass
  std::vector<BFloat16> device_rows_;     // as they come from the device
  std::vector<float> device_lambdas_;     // likewise
  std::vector<float> q_;                  // [tokens of the batch][q_width]
  std::vector<float> lambda_rows_;        // [tokens of the batch][num_q1_heads]
  std::vector<std::byte> pages_;
  std::vector<float> states_;  // [StateRows][hidden_size]
};

}  // namespace diffserve::cuda
