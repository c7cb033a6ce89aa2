// SPDX-License-Identifier: Apache-2.0
#include "server/app/models/session_cost.h"

#include <algorithm>

#include "kernels/attention/diff_attention.h"

namespace diffserve {

double StepBytes(const SessionPlan& plan) {
  if (plan.on_gpu()) return static_cast<double>(plan.summary.device_step_bytes);
  const EngineOptions& engine = plan.engine;
  const double tokens = std::min<double>(engine.max_num_batched_tokens,
                                         double{1.0} * engine.max_num_seqs * engine.max_model_len);
  const double vocab = plan.summary.config.vocab_size;
  const double logits = std::max(
      vocab,
      std::min<double>(kMaxLogitElements, std::min<double>(engine.max_num_seqs, tokens) * vocab));
  const int64_t attention = cpu::AttentionWorkspaceBytes(plan.summary.config.attention,
                                                         engine.max_model_len, plan.num_threads);
  const size_t of_draft = plan.draft ? plan.draft->summary.activation_bytes_per_token : 0;
  return tokens * static_cast<double>(plan.summary.activation_bytes_per_token + of_draft) +
         static_cast<double>(attention) + logits * sizeof(float);
}

double TotalBytes(const SessionPlan& plan) {
  return static_cast<double>(plan.weight_memory_bytes() + plan.kv_bytes() + plan.state_bytes()) +
         StepBytes(plan);
}

double SequenceBytes(const SessionPlan& plan, double context) {
  double bytes = 2 * static_cast<double>(plan.slot_bytes());
  for (const LayerConfig& layer : plan.summary.config.layers) {
    if (layer.mixer != MixerKind::kAttention) continue;
    const size_t page = KvCache::BytesPerPage({&plan.layouts[static_cast<size_t>(layer.kv)], 1});
    bytes += static_cast<double>(page) / plan.engine.page_size *
             (layer.window > 0 ? std::min<double>(layer.window, context) : context);
  }
  return bytes;
}

}  // namespace diffserve
