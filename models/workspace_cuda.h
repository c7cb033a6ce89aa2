// The device memory that steps of a decoder work in, taken once for the largest step that the
// limits allow.
#pragma once

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/base/cuda/memory.h"
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

struct Workspace {
  // Row-major; bfloat16 where nothing is said.
  DeviceBuffer residual;     // [rows, hidden_size], float32
  DeviceBuffer normed;       // [rows, hidden_size]
  DeviceBuffer qkv;          // [rows, q_width + k_width + v_width]
  DeviceBuffer q;            // [rows, q_width], rotated
  DeviceBuffer lambda;       // [rows, num_q1_heads], float32, LambdaKind::kPerTokenHead
  DeviceBuffer attention;    // [rows, out_width]
  DeviceBuffer gate_up;      // [rows, 2 * intermediate_size]
  DeviceBuffer mlp;          // [rows, intermediate_size]
  DeviceBuffer final_state;  // [logit rows of a step, hidden_size]
  DeviceBuffer logits;       // [logits_rows, vocab_size], float32
  DeviceBuffer sampled;      // SampledRow [rows]
  DeviceBuffer partials;     // float32, of decode attention
  AttentionPlanMemory generated_plan, prompt_plan;
  int logits_rows = 0;

  static Result<Workspace> Allocate(const ModelConfig& config, const StepLimits& limits);
  static size_t Bytes(const ModelConfig& config, const StepLimits& limits);

  // Items of generated rows that the partials have room for.
  int64_t GeneratedItemsMax(const DiffSpec& spec, const AttentionTiling& tiling) const;
};

}  // namespace diffserve::cuda
