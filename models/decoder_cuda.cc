#include "models/decoder_cuda.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention/diff_attention_cuda.h"
#include "kernels/ops/rope_append_cuda.h"
#include "kernels/ops/rowwise_cuda.h"
#include "kernels/ops/sample_cuda.h"

namespace diffserve::cuda {

Status Decoder::Forward(const DeviceStep& step, KvCache& kv, int first_logit_row) {
  const ModelConfig& config = parts_.config;
  const Workspace& work = parts_.work;
  const int tokens = step.all.num_rows;
  DS_RETURN_IF_ERROR(PlanAttention(step));

  // Stage 1: the residual stream begins with the tokens' embeddings.
  EmbeddingLookupArgs embedding;
  embedding.table = parts_.weights.embedding.data();
  embedding.tokens = step.tokens;
  embedding.out = work.hidden.as<float>();
  embedding.rows = tokens;
  embedding.width = config.hidden_size;
  embedding.drawn = &work.sampled.as<SampledRow>()->token;
  embedding.drawn_stride = sizeof(SampledRow) / sizeof(int32_t);
  DS_RETURN_IF_ERROR(EmbeddingLookup(embedding, stream_));

  // Stage 2: the layers add to it.
  for (size_t l = 0; l < parts_.weights.layers.size(); ++l) {
    const Weights::Layer& layer = parts_.weights.layers[l];
    DS_RETURN_IF_ERROR(Attention(layer, step, kv.Layer(static_cast<int>(l))));
    DS_RETURN_IF_ERROR(Mlp(layer, tokens));
  }

  // Stage 3: the final state of the tokens whose logits are wanted.
  RmsNormArgs norm;
  norm.residual = work.hidden.as<float>();
  norm.source_rows = step.logit_rows;
  norm.weight = parts_.weights.final_norm.as<float>();
  norm.out = work.final_state.as<uint16_t>() +
             static_cast<int64_t>(first_logit_row) * config.hidden_size;
  norm.rows = step.num_logit_rows;
  norm.width = config.hidden_size;
  norm.eps = config.rms_norm_eps;
  return RmsNorm(norm, stream_);
}

// Which blocks of the device compute what, once a step for all layers.
Status Decoder::PlanAttention(const DeviceStep& step) {
  if (step.generated.num_rows > 0) {
    DS_RETURN_IF_ERROR(
        StatusOfCudaError(PlanDiffAttention(step.generated_tiling, step.generated,
                                            parts_.work.generated_plan.Plan(), stream_.handle()),
                          "planning decode attention"));
  }
  if (step.prompts.num_rows == 0) return Status();
  return StatusOfCudaError(
      PlanDiffAttention(DiffPrefillTiling(parts_.config.attention), step.prompts,
                        parts_.work.prompt_plan.Plan(), stream_.handle()),
      "planning prefill attention");
}

// hidden += W_o attention(norm(hidden)); K and V of the step's tokens are appended to their pages.
Status Decoder::Attention(const Weights::Layer& layer, const DeviceStep& step, const PagedKv& kv) {
  const Workspace& work = parts_.work;
  const DiffSpec& spec = parts_.config.attention;
  const int tokens = step.all.num_rows;
  // Stage 1: q, k and v.
  DS_RETURN_IF_ERROR(Norm(layer.input_norm, tokens));
  DS_RETURN_IF_ERROR(Linear(layer.qkv, work.normed.data(), tokens, work.qkv));

  // Stage 2: q and k are rotated, k and v go to their pages.
  RopeAppendArgs append;
  append.spec = spec;
  append.batch = step.all;
  append.kv = kv;
  append.cos = parts_.cos.as<float>();
  append.sin = parts_.sin.as<float>();
  append.style = parts_.config.rope.style;
  append.qkv = work.qkv.as<uint16_t>();
  append.q = work.q.as<uint16_t>();
  DS_RETURN_IF_ERROR(StatusOfCudaError(RopeAppend(append, stream_.handle()), "appending to pages"));

  // Stage 3: lambda of each token and head, where the family has it.
  if (spec.lambda_kind == LambdaKind::kPerTokenHead) {
    DS_RETURN_IF_ERROR(Linear(layer.lambda_proj, work.normed.data(), tokens, work.lambda));
    DS_RETURN_IF_ERROR(Sigmoid(
        {work.lambda.as<float>(), static_cast<int64_t>(tokens) * spec.num_q1_heads}, stream_));
  }

  // Stage 4: attention over the pages.
  DiffAttentionArgs attention;
  attention.spec = spec;
  attention.kv = kv;
  attention.q = work.q.as<uint16_t>();
  attention.out = work.attention.as<uint16_t>();
  attention.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  attention.lambda = layer.lambda;
  attention.lambda_rows = work.lambda.as<float>();
  attention.sub_norm_weight = layer.sub_norm.as<float>();
  attention.out_scale = layer.out_scale;
  attention.batch = step.generated;
  attention.tiling = step.generated_tiling;
  attention.plan = work.generated_plan.Plan();
  attention.partials = work.partials.as<float>();
  DS_RETURN_IF_ERROR(
      StatusOfCudaError(DiffDecode(attention, stream_.handle()), "decode attention"));
  attention.batch = step.prompts;
  attention.tiling = DiffPrefillTiling(spec);
  attention.plan = work.prompt_plan.Plan();
  DS_RETURN_IF_ERROR(
      StatusOfCudaError(DiffPrefill(attention, stream_.handle()), "prefill attention"));

  // Stage 5: its output joins the residual stream.
  return Linear(layer.attention_out, work.attention.data(), tokens, work.hidden,
                /*accumulate=*/true);
}

// hidden += W_down (act(W_gate x) * W_up x) with x = norm(hidden); act is SiLU or PolyNorm.
Status Decoder::Mlp(const Weights::Layer& layer, int tokens) {
  const Workspace& work = parts_.work;
  // Stage 1: gate and up.
  DS_RETURN_IF_ERROR(Norm(layer.post_attention_norm, tokens));
  DS_RETURN_IF_ERROR(Linear(layer.gate_up, work.normed.data(), tokens, work.gate_up));

  // Stage 2: the activation.
  const int width = parts_.config.intermediate_size;
  const auto* gate_up = work.gate_up.as<uint16_t>();
  auto* mlp = work.mlp.as<uint16_t>();
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
  return Linear(layer.down, work.mlp.data(), tokens, work.hidden, /*accumulate=*/true);
}

// normed = rms-norm of the first `tokens` rows of hidden.
Status Decoder::Norm(const DeviceBuffer& weight, int tokens) {
  RmsNormArgs norm;
  norm.residual = parts_.work.hidden.as<float>();
  norm.weight = weight.as<float>();
  norm.out = parts_.work.normed.as<uint16_t>();
  norm.rows = tokens;
  norm.width = parts_.config.hidden_size;
  norm.eps = parts_.config.rms_norm_eps;
  return RmsNorm(norm, stream_);
}

Status Decoder::Linear(const PackedLinear& layer, const void* x, int tokens, const DeviceBuffer& y,
                       bool accumulate) {
  LinearArgs args;
  args.weight = static_cast<const uint16_t*>(layer.weight());
  args.in_features = layer.in_features();
  args.out_features = layer.out_features();
  args.x = static_cast<const uint16_t*>(x);
  args.rows = tokens;
  args.y = y.data();
  args.y_dtype = layer.output() == LinearOutput::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
  args.bias = layer.bias();
  args.accumulate = accumulate;
  return parts_.matrices->Linear(args, stream_);
}

Status Decoder::SampleAll(const DeviceStep& step) {
  const Workspace& work = parts_.work;
  for (int first = 0; first < step.num_sample_rows; first += work.logits_rows) {
    const int rows = std::min(work.logits_rows, step.num_sample_rows - first);
    DS_RETURN_IF_ERROR(LogitsOf(first, rows));
    SampleRowsArgs args;
    args.logits = work.logits.as<float>();
    args.vocab_size = parts_.config.vocab_size;
    args.num_rows = rows;
    args.rows = step.sample_rows + first;
    args.adjustments = step.adjustments;
    args.sampled = work.sampled.as<SampledRow>() + first;
    DS_RETURN_IF_ERROR(StatusOfCudaError(SampleRows(args, stream_.handle()), "sampling"));
  }
  return Status();
}

Status Decoder::LogitsOf(int first, int count) {
  const auto* x = parts_.work.final_state.as<uint16_t>() +
                  static_cast<int64_t>(first) * parts_.config.hidden_size;
  return Linear(parts_.weights.lm_head, x, count, parts_.work.logits);
}

}  // namespace diffserve::cuda
