// The device memory that steps of a decoder work in, taken once for the largest step that the
// limits allow.
#pragma once

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/base/cuda/memory.h"
#include "models/activations.h"
#include "models/model.h"

namespace diffserve::cuda {

struct AttentionPlanMemory {
  DeviceBuffer items;
  DeviceBuffer first_item;
  DeviceBuffer num_items;
  int capacity = 0;
  AttentionPlan Plan() const {
    return {num_items.as<int32_t>(), items.as<AttentionItem>(), first_item.as<int32_t>(), capacity};
  }
};

struct Workspace : Activations<DeviceBuffer> {
  DeviceBuffer final_state;  // bfloat16 [logit rows of a step, hidden_size]
  DeviceBuffer logits;       // float32 [logits_rows, vocab_size]
  DeviceBuffer sampled;      // SampledToken [tokens]
  DeviceBuffer partials;     // float32, of decode attention
  DeviceBuffer extents;      // float32, of decode attention with quantised logits
  AttentionPlanMemory generated_plan, prompt_plan;
  int logits_rows = 0;

  static Result<Workspace> Allocate(const ModelConfig& config, const StepLimits& limits,
                                    const LogitQuant& logits);
  static size_t Bytes(const ModelConfig& config, const StepLimits& limits,
                      const LogitQuant& logits);

  // Items of generated tokens that the partials have room for.
  int64_t GeneratedItemsMax(const DiffSpec& spec, const AttentionTiling& tiling) const;
};

}  // namespace diffserve::cuda
