// SPDX-License-Identifier: Apache-2.0
// The device memory in which a decoder's steps work, allocated once for the largest step within the
// limits.
#pragma once

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/base/cuda/memory.h"
#include "models/activations.h"
#include "models/model.h"

namespace diffserve::cuda {

struct Workspace : Activations<DeviceBuffer> {
  DeviceBuffer final_state;  // bfloat16 [logit rows per step, hidden_size]
  DeviceBuffer logits;       // float32 [logits_rows, vocab_size]
  DeviceBuffer sampled;      // SampledToken [tokens]
  DeviceBuffer partials;     // float32, for decode attention
  DeviceBuffer counters;     // uint32, zeros between its layers
  DeviceBuffer extents;      // float32, for decode attention with quantised logits
  DeviceBuffer widened;      // pages of one group or several, for prefill over pages of codes
  DeviceBuffer widened_ids;  // int32, one per page of one group for which `widened` has room
  int logits_rows = 0;

  static Result<Workspace> Allocate(const ModelConfig& config, const StepLimits& limits,
                                    const LogitQuant& logits);
  static size_t Bytes(const ModelConfig& config, const StepLimits& limits,
                      const LogitQuant& logits);

  // Number of items of generated tokens for which partials and counters have room.
  int64_t GeneratedItemsMax(const DiffSpec& spec, const AttentionTiling& tiling) const;
  // Number of pages of prompts whose attention can be computed at once.
  int PromptPagesMax() const;
  WidenedPages WidenedFor(int first_page, int num_pages) const;
};

}  // namespace diffserve::cuda
