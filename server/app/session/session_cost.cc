// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/session_cost.h"

#include <algorithm>
#include <cstdio>

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

StepFlops::StepFlops(const ModelConfig& config) {
  const DiffSpec& a = config.attention;
  const double hidden = config.hidden_size;
  const MambaSpec& m = config.mamba;
  for (int l = 0; l < config.num_layers; ++l) {
    const LayerConfig& layer = config.layers[static_cast<size_t>(l)];
    Flops& mixer = l < config.last_keeping_layer() ? all_tokens : wanted_tokens;
    switch (layer.mixer) {
      case MixerKind::kAttention:
        (layer.writes_kv() ? all_tokens : mixer).linear += 2 * hidden * a.q_width();
        if (layer.writes_kv()) all_tokens.linear += 2 * hidden * (a.k_width() + a.v_width());
        mixer.linear += 2 * hidden * a.out_width();
        if (layer.window == 0)
          mixer.attention += 2.0 * (a.num_q1_heads + a.num_q2_heads) * (a.head_dim + a.v_dim);
        break;
      case MixerKind::kMamba:
        all_tokens.linear += 2 * m.inner * (3 * hidden + 2.0 * m.dt_rank + 2.0 * m.state_dim);
        break;
      case MixerKind::kGatedMemory:
        mixer.linear += 4 * hidden * m.inner;
        break;
    }
    mixer.linear += 6 * hidden * config.intermediate_size;
  }
  wanted_tokens.linear += 2 * hidden * config.vocab_size;
}

std::string ParametersText(int64_t parameters) {
  const double millions = static_cast<double>(parameters) / 1e6;
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f %c", millions < 999.995 ? millions : millions / 1e3,
                millions < 999.995 ? 'M' : 'B');
  return text;
}

}  // namespace diffserve
