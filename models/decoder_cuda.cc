#include "models/decoder_cuda.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/attention/diff_attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/rope_append.h"
#include "kernels/ops/rowwise.h"

namespace diffserve::cuda {

Status Decoder::Forward(const DeviceStep& step, KvCache& kv, int first_logit_row) {
  const Workspace& work = parts_.work;
  const int tokens = step.all.num_tokens;
  DS_RETURN_IF_ERROR(PlanGenerated(step));

  // Stage 1: the residual stream begins with the tokens' embeddings.
  DS_RETURN_IF_ERROR(EmbeddingLookup(parts_.weights.embedding,
                                     {.tokens = step.tokens,
                                      .out = work.hidden.as<float>(),
                                      .num_tokens = tokens,
                                      .drawn = &work.sampled.as<SampledToken>()->token,
                                      .drawn_stride = sizeof(SampledToken) / sizeof(int32_t)},
                                     stream_));

  // Stage 2: the layers add to it.
  for (size_t l = 0; l < parts_.weights.layers.size(); ++l) {
    const Weights::Layer& layer = parts_.weights.layers[l];
    const DType pages = kv.layers()[l].codec.dtype;
    if (l == 0 || pages != kv.layers()[l - 1].codec.dtype)
      DS_RETURN_IF_ERROR(PlanPrompts(step, pages));
    DS_RETURN_IF_ERROR(Attention(layer, step, kv.Layer(static_cast<int>(l))));
    DS_RETURN_IF_ERROR(Mlp(layer, tokens));
  }

  // Stage 3: the final state of the tokens whose logits are wanted.
  BFloat16* final_state = work.final_state.as<BFloat16>() +
                          static_cast<int64_t>(first_logit_row) * parts_.config.hidden_size;
  return Norm(parts_.weights.final_norm, step.num_logit_rows, final_state, step.logit_rows);
}

// hidden += W_o attention(norm(hidden)); K and V of the step's tokens are appended to their pages.
Status Decoder::Attention(const Weights::Layer& layer, const DeviceStep& step, const PagedKv& kv) {
  const Workspace& work = parts_.work;
  const DiffSpec& spec = parts_.config.attention;
  const int tokens = step.all.num_tokens;
  // Stage 1: q, k and v.
  DS_RETURN_IF_ERROR(Norm(layer.input_norm, tokens, work.normed.as<BFloat16>()));
  DS_RETURN_IF_ERROR(
      Linear(layer.qkv,
             {.x = work.normed.as<BFloat16>(), .num_tokens = tokens, .y = work.qkv.as<BFloat16>()},
             *parts_.matrices, stream_));

  // Stage 2: q and k are rotated, k and v go to their pages.
  RopeAppendArgs<BFloat16> append;
  append.spec = spec;
  append.batch = step.all;
  append.kv = kv;
  append.rope = parts_.rope;
  append.style = parts_.config.rope.style;
  append.qkv = work.qkv.as<BFloat16>();
  append.q = work.q.as<BFloat16>();
  DS_RETURN_IF_ERROR(RopeAppend(append, stream_));

  // Stage 3: lambda of each token and head, where the family has it.
  if (spec.lambda_kind == LambdaKind::kPerTokenHead) {
    DS_RETURN_IF_ERROR(Linear(
        layer.lambda_proj,
        {.x = work.normed.as<BFloat16>(), .num_tokens = tokens, .y = work.lambda.as<float>()},
        *parts_.matrices, stream_));
    DS_RETURN_IF_ERROR(Sigmoid(
        {work.lambda.as<float>(), static_cast<int64_t>(tokens) * spec.num_q1_heads}, stream_));
  }

  // Stage 4: attention over the pages.
  DiffAttentionArgs<BFloat16> attention;
  attention.spec = spec;
  attention.batch = step.generated;
  attention.kv = kv;
  attention.q = work.q.as<BFloat16>();
  attention.out = work.attention.as<BFloat16>();
  attention.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  attention.lambda = layer.lambda;
  attention.lambda_rows = work.lambda.as<float>();
  attention.sub_norm_weight = layer.sub_norm.as<float>();
  attention.out_scale = layer.out_scale;
  attention.logit_quant = parts_.logit_quant;
  AttentionSchedule schedule;
  schedule.tiling = step.generated_tiling;
  schedule.plan = work.generated_plan.Plan();
  schedule.partials = work.partials.as<float>();
  schedule.extents = work.extents.as<float>();
  DS_RETURN_IF_ERROR(DiffAttention(attention, schedule, stream_));
  attention.batch = step.prompts;
  schedule.tiling = DiffPrefillTiling(spec, kv.format.codec.dtype);
  schedule.plan = work.prompt_plan.Plan();
  DS_RETURN_IF_ERROR(DiffAttention(attention, schedule, stream_));

  // Stage 5: its output joins the residual stream.
  return Linear(layer.attention_out,
                {.x = work.attention.as<BFloat16>(),
                 .num_tokens = tokens,
                 .y = work.hidden.as<float>(),
                 .accumulate = true},
                *parts_.matrices, stream_);
}

// hidden += W_down (act(W_gate x) * W_up x) with x = norm(hidden); act is SiLU or PolyNorm.
Status Decoder::Mlp(const Weights::Layer& layer, int tokens) {
  const Workspace& work = parts_.work;
  // Stage 1: gate and up.
  DS_RETURN_IF_ERROR(Norm(layer.post_attention_norm, tokens, work.normed.as<BFloat16>()));
  DS_RETURN_IF_ERROR(Linear(
      layer.gate_up,
      {.x = work.normed.as<BFloat16>(), .num_tokens = tokens, .y = work.gate_up.as<BFloat16>()},
      *parts_.matrices, stream_));

  // Stage 2: the activation.
  const int width = parts_.config.intermediate_size;
  const auto* gate_up = work.gate_up.as<BFloat16>();
  auto* mlp = work.mlp.as<BFloat16>();
  switch (parts_.config.mlp) {
    case MlpKind::kSwiGlu:
      DS_RETURN_IF_ERROR(SiluMul({gate_up, mlp, tokens, width}, stream_));
      break;
    case MlpKind::kPolyNorm: {
      const auto& [w, bias] = layer.poly_norm;
      DS_RETURN_IF_ERROR(
          PolyNormMul({gate_up, mlp, tokens, width, {w[0], w[1], w[2]}, bias}, stream_));
      break;
    }
  }

  // Stage 3: down joins the residual stream.
  return Linear(layer.down,
                {.x = work.mlp.as<BFloat16>(),
                 .num_tokens = tokens,
                 .y = work.hidden.as<float>(),
                 .accumulate = true},
                *parts_.matrices, stream_);
}

// out[t] = rms-norm of row t of hidden, or of row indices[t].
Status Decoder::Norm(const DeviceBuffer& weight, int tokens, BFloat16* out,
                     const int32_t* indices) {
  return RmsNorm({.x = parts_.work.hidden.as<float>(),
                  .weight = weight.as<float>(),
                  .out = out,
                  .num_tokens = tokens,
                  .width = parts_.config.hidden_size,
                  .eps = parts_.config.rms_norm_eps,
                  .indices = indices},
                 stream_);
}

Status Decoder::SampleAll(const DeviceStep& step) {
  const Workspace& work = parts_.work;
  const int count = step.num_sample_rows;
  const int slice = work.logits_rows;
  for (int first = 0; first < count; first += slice) {
    const int rows = std::min(slice, count - first);
    DS_RETURN_IF_ERROR(LogitsOf(first, rows));
    DS_RETURN_IF_ERROR(Sample({.logits = work.logits.as<float>(),
                               .vocab_size = parts_.config.vocab_size,
                               .num_rows = rows,
                               .tasks = step.sample_rows + first,
                               .adjustments = step.adjustments,
                               .masks = step.masks,
                               .sampled = work.sampled.as<SampledToken>() + first},
                              stream_));
  }
  return Status();
}

// work.logits = those of final states [first, first + count).
Status Decoder::LogitsOf(int first, int count) {
  const Workspace& work = parts_.work;
  const BFloat16* x = work.final_state.as<BFloat16>() +
                      static_cast<int64_t>(first) * parts_.config.hidden_size;
  return Linear(parts_.weights.lm_head, {.x = x, .num_tokens = count, .y = work.logits.as<float>()},
                *parts_.matrices, stream_);
}

// Which blocks of the device compute what of the generated tokens, once a step for all layers.
Status Decoder::PlanGenerated(const DeviceStep& step) {
  if (step.generated.num_tokens == 0) return Status();
  return PlanDiffAttention(step.generated_tiling, step.generated, parts_.work.generated_plan.Plan(),
                           stream_);
}

// The same of the prompts, for the layers that follow each other with such pages.
Status Decoder::PlanPrompts(const DeviceStep& step, DType pages) {
  if (step.prompts.num_tokens == 0) return Status();
  return PlanDiffAttention(DiffPrefillTiling(parts_.config.attention, pages), step.prompts,
                           parts_.work.prompt_plan.Plan(), stream_);
}

}  // namespace diffserve::cuda
